-- answer.lua: an answer checked whole, then carried out whole.

local json, tables = ...

local M = {}

local MODES = { observe = true, advise = true, enforce = true }
-- One field of job_desc, of which only the kind that is set can be read, so that it cannot be put back: applied last.
local LAST = { min_mem_per_node = true, min_mem_per_cpu = true }

-- A line that a terminal may be given: printable UTF-8 without control characters.
local function printable(text)
  if type(text) ~= "string" or #text > 400 or string.find(text, "[%z\1-\31\127]") then
    return false
  end
  local at = string.find(text, "[\128-\255]")
  while at do
    local length, code = json.sequence(text, at)
    if not length or code < 0xa0 then
      return false
    end
    at = string.find(text, "[\128-\255]", at + length)
  end
  return true
end

-- Whether a text is of the length and the characters of a rule { low, high, characters }.
local function fits(text, low, high, characters)
  return type(text) == "string" and #text >= low and #text <= high
    and string.find(text, "^[" .. characters .. "]*$") ~= nil
end

-- Whether the table allows `name` to be set to `value`.
function M.allowed(name, value)
  local rule = tables.EDITS[name]
  if not rule then
    return false
  elseif rule[1] == "int" then
    return type(value) == "number" and value >= rule[2] and value <= rule[3] and value % 1 == 0
  end
  return fits(value, rule[2], rule[3], rule[4])
end

local ENV_NAMES, ENV_VALUE, ERRNO = {}, tables.ENV_VALUE, tables.ERRNO
for _, name in ipairs(tables.ENV_NAMES) do
  ENV_NAMES[name] = true
end

local function checked_lines(lines, count)
  if #lines > count then
    return nil
  end
  for _, line in ipairs(lines) do
    if not printable(line) then
      return nil
    end
  end
  return lines
end

-- What is to be done, from an answer; nil and the reason where anything in it is not allowed.
function M.plan(answer, batch)
  if not MODES[answer.mode] then
    return nil, "an unknown mode"
  end
  local plan = { edits = {}, env = {}, say = json.is_list(answer.say) and checked_lines(answer.say, 8) }
  if not plan.say then
    return nil, "a message that cannot be shown"
  elseif answer.mode ~= "enforce" then
    return plan -- words only; in observe for who asked for them
  end
  if answer.reject ~= json.NULL and answer.reject ~= nil then
    if type(answer.reject) ~= "string" then
      return nil, "a rejection that is no text"
    end
    local lines = {}
    for line in string.gmatch(answer.reject, "[^\n]+") do
      lines[#lines + 1] = line
    end
    plan.reject = checked_lines(lines, 3)
    if not plan.reject or #lines == 0 then
      return nil, "a rejection that cannot be shown"
    end
    local number = answer.errno
    if number ~= nil and number ~= 0 and number ~= json.NULL then
      if type(number) ~= "number" or number < ERRNO[1] or number > ERRNO[2] or number % 1 ~= 0 then
        return nil, "a rejection with a number that is none of Slurm's"
      end
      plan.errno = number
    end
    return plan
  end
  if not json.is_object(answer.edits) or not json.is_object(answer.env) then
    return nil, "changes that are none"
  end
  for name, value in pairs(answer.edits) do
    if not M.allowed(name, value) then
      return nil, "a change that is not allowed: " .. name
    end
    plan.edits[name] = value
  end
  if plan.edits.min_mem_per_node and plan.edits.min_mem_per_cpu then
    return nil, "memory both per node and per CPU"
  end
  for name, value in pairs(answer.env) do
    if not ENV_NAMES[name] or not fits(value, ENV_VALUE[1], ENV_VALUE[2], ENV_VALUE[3]) then
      return nil, "a variable that is not allowed: " .. name
    elseif not batch then
      return nil, "variables for a job that brings none"
    end
    plan.env[name] = value
  end
  return plan
end

-- Make the changes. Where one fails, those before it are taken back: a number that is not set reads as NO_VAL, a text
-- that is not set as nil and is unset by writing an empty one.
function M.apply(job, plan)
  for name in pairs(plan.edits) do
    if tables.EDITS[name][1] == "int" and not LAST[name] and job[name] == nil then
      return nil, name .. " is not a field of this Slurm"
    end
  end
  local done, where = {}, nil
  local function set(target, name, value)
    local before = target[name]
    where = name
    target[name] = value
    done[#done + 1] = { target, name, before }
  end
  local fine, problem = pcall(function()
    for name, value in pairs(plan.edits) do
      if not LAST[name] then
        set(job, name, value)
      end
    end
    local environment = next(plan.env) and job.environment
    for name, value in pairs(plan.env) do
      set(environment, name, value)
    end
    for name in pairs(LAST) do
      if plan.edits[name] then
        set(job, name, plan.edits[name])
      end
    end
  end)
  if fine then
    return true
  end
  for index = #done, 1, -1 do
    local target, name, before = done[index][1], done[index][2], done[index][3]
    pcall(function()
      target[name] = before == nil and "" or before
    end)
  end
  return nil, string.format("%s could not be changed: %s", tostring(where), tostring(problem))
end

return M
