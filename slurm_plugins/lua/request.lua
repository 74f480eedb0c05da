-- request.lua: the question about a job, as a line of JSON.

local json, tables = ...

local M = {}

local REQUEST_LIMIT = 256 * 1024
local STRING_LIMIT, ENV_LIMIT, SCRIPT_LIMIT = 4096, 1024, 64 * 1024
local INTEGER_LIMIT = 2 ^ 53 -- Slurm's numbers come as doubles
local NO_VAL = { [8] = 0xfe, [16] = 0xfffe, [32] = 0xfffffffe, [64] = 2 ^ 53 }
local quote, head = json.quote, json.head

local NUMBERS, TEXTS = {}, {}
for name, kind in pairs(tables.FIELDS) do
  if kind == "text" then
    TEXTS[#TEXTS + 1] = { name, '"' .. name .. '":' }
  else
    NUMBERS[#NUMBERS + 1] = { name, '"' .. name .. '":', kind == "flag" and 0 or NO_VAL[kind] }
  end
end

-- The digits of a whole number that is set; nil otherwise.
function M.integer(value, unset)
  if value == true then
    return "1"
  elseif type(value) ~= "number" or value == unset or value < 0 or value >= INTEGER_LIMIT or value % 1 ~= 0 then
    return nil
  end
  return string.format("%.0f", value)
end
local integer = M.integer

-- Whether a number of so many bits is set.
function M.is_set(value, width)
  return integer(value, NO_VAL[width]) ~= nil
end

local function uid(value)
  return integer(value) or error("no user id")
end

local function job_part(job, text_limit)
  local parts, cut = {}, {}
  for _, field in ipairs(NUMBERS) do
    local value = integer(job[field[1]], field[3])
    if value then
      parts[#parts + 1] = field[2] .. value
    end
  end
  for _, field in ipairs(TEXTS) do
    local value = job[field[1]]
    if type(value) == "string" then
      if #value > text_limit then
        value = head(value, text_limit)
        cut[#cut + 1] = quote(field[1])
      end
      parts[#parts + 1] = field[2] .. quote(value)
    end
  end
  return "{" .. table.concat(parts, ",") .. "}", cut
end

local function env_part(environment, limit, cut)
  local parts = {}
  for _, name in ipairs(tables.ENV_NAMES) do
    local value = environment[name]
    if type(value) == "string" then
      if #value > limit then
        value = head(value, limit)
        cut[#cut + 1] = quote("env." .. name)
      end
      parts[#parts + 1] = quote(name) .. ":" .. quote(value)
    end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

local function shim_part(counters)
  local parts = {}
  for name, count in pairs(counters) do
    if count > 0 then
      parts[#parts + 1] = string.format('"%s":%d', name, count)
    end
  end
  return #parts > 0 and ',"shim":{' .. table.concat(parts, ",") .. "}" or ""
end

local function request_line(id, job, submit_uid, script, counters, shrink)
  local fields, cut = job_part(job, STRING_LIMIT / shrink)
  local parts = {
    string.format('{"v":1,"id":%d,"uid":%s,"submit_uid":%s', id, uid(job.user_id), uid(submit_uid)),
    ',"slurm":"","job":' .. fields, -- Lua is not told the release; the service knows it
  }
  if script then
    parts[#parts + 1] = ',"env":' .. env_part(job.environment, ENV_LIMIT / shrink, cut) .. ',"batch":true'
    parts[#parts + 1] = ',"script_head":' .. quote(head(script, SCRIPT_LIMIT / shrink))
    parts[#parts + 1] = string.format(',"script_bytes":%d', #script)
  else
    parts[#parts + 1] = ',"batch":false'
  end
  if #cut > 0 then
    parts[#parts + 1] = ',"cut":[' .. table.concat(cut, ",") .. "]"
  end
  parts[#parts + 1] = shim_part(counters)
  parts[#parts + 1] = "}\n"
  return table.concat(parts)
end

-- The question about a job, at most REQUEST_LIMIT bytes: text that escapes to six times its length is cut shorter.
function M.line(id, job, submit_uid, script, counters)
  local line = request_line(id, job, submit_uid, script, counters, 1)
  if #line > REQUEST_LIMIT then
    line = request_line(id, job, submit_uid, script, counters, 8)
  end
  return line
end

return M
