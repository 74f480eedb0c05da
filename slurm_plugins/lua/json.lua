-- json.lua: JSON in ASCII out of any bytes, and back within bounds. Slurm brings none before 26.05.

local M = {}

local DEPTH_LIMIT = 6

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
for code = 0, 31 do
  local char = string.char(code)
  ESCAPES[char] = ESCAPES[char] or string.format("\\u%04x", code)
end
ESCAPES["\127"] = "\\u007f"

-- The length and code point of the UTF-8 sequence at `at`, nil where the bytes are none (Unicode 15, table 3-7).
function M.sequence(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  local function more(byte, low, high)
    return byte ~= nil and byte >= (low or 0x80) and byte <= (high or 0xbf)
  end
  if a >= 0xc2 and a <= 0xdf and more(b) then
    return 2, (a - 0xc0) * 0x40 + b - 0x80
  end
  if a >= 0xe0 and a <= 0xef and more(b, a == 0xe0 and 0xa0, a == 0xed and 0x9f) and more(c) then
    return 3, (a - 0xe0) * 0x1000 + (b - 0x80) * 0x40 + c - 0x80
  end
  if a >= 0xf0 and a <= 0xf4 and more(b, a == 0xf0 and 0x90, a == 0xf4 and 0x8f) and more(c) and more(d) then
    return 4, (a - 0xf0) * 0x40000 + (b - 0x80) * 0x1000 + (c - 0x80) * 0x40 + d - 0x80
  end
  return nil
end
local sequence = M.sequence

local function escape_run(bytes)
  local out, at = {}, 1
  while at <= #bytes do
    local length, code = sequence(bytes, at)
    if not length then
      out[#out + 1] = "\\ufffd"
    elseif code < 0x10000 then
      out[#out + 1] = string.format("\\u%04x", code)
    else
      code = code - 0x10000
      out[#out + 1] = string.format("\\u%04x\\u%04x", 0xd800 + math.floor(code / 0x400), 0xdc00 + code % 0x400)
    end
    at = at + (length or 1)
  end
  return table.concat(out)
end

-- `text` as a JSON string in ASCII; bytes that are not UTF-8 become U+FFFD.
function M.quote(text)
  if not string.find(text, "[^ -~\n]") then
    -- Most scripts. %q escapes in C, nine times as fast as a table in gsub; it leaves the line's end behind its \. Not
    -- for tabs: Lua 5.2 and newer write them as \9, which JSON does not know.
    return (string.gsub(string.format("%q", text), "\n", "n"))
  end
  text = string.gsub(text, '[%z\1-\31\127"\\]', ESCAPES)
  text = string.gsub(text, "[\128-\255]+", escape_run)
  return '"' .. text .. '"'
end

-- At most `limit` bytes of `text`, not ending in half a UTF-8 sequence.
function M.head(text, limit)
  if #text <= limit then
    return text
  end
  local cut = limit
  for back = 0, 3 do
    local byte = string.byte(text, limit + 1 - back)
    if byte < 0x80 or byte > 0xbf then -- a character begins here: all before it is whole
      cut = limit - back
      break
    end
  end
  return string.sub(text, 1, cut)
end

local NULL, ARRAY = {}, {}
M.NULL = NULL
local UNESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local function utf8(code)
  local char, floor = string.char, math.floor
  if code < 0x80 then
    return char(code)
  elseif code < 0x800 then
    return char(0xc0 + floor(code / 0x40), 0x80 + code % 0x40)
  elseif code < 0x10000 then
    return char(0xe0 + floor(code / 0x1000), 0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  end
  return char(0xf0 + floor(code / 0x40000), 0x80 + floor(code / 0x1000) % 0x40, 0x80 + floor(code / 0x40) % 0x40,
    0x80 + code % 0x40)
end

local function decode_string(text, at)
  local quick = string.find(text, '"', at, true)
  local plain = quick and string.sub(text, at, quick - 1)
  if plain and not string.find(plain, "[%c\\]") then
    return plain, quick + 1
  end
  local out = {}
  while true do
    local stop = string.find(text, '[%z\1-\31"\\]', at)
    local char = stop and string.sub(text, stop, stop)
    if char ~= '"' and char ~= "\\" then
      error("a string without an end")
    end
    out[#out + 1] = string.sub(text, at, stop - 1)
    if char == '"' then
      return table.concat(out), stop + 1
    end
    local kind = string.sub(text, stop + 1, stop + 1)
    at = stop + 2
    if kind == "u" then
      local code = tonumber(string.match(text, "^%x%x%x%x", at) or error("a bad escape"), 16)
      at = at + 4
      if code >= 0xd800 and code <= 0xdbff then
        local low = tonumber(string.match(text, "^\\u([dD][c-fC-F]%x%x)", at) or error("half a character"), 16)
        code = 0x10000 + (code - 0xd800) * 0x400 + (low - 0xdc00)
        at = at + 6
      elseif code >= 0xdc00 and code <= 0xdfff then
        error("half a character")
      end
      out[#out + 1] = utf8(code)
    else
      out[#out + 1] = UNESCAPES[kind] or error("a bad escape")
    end
  end
end

local decode_value

local function skip(text, at)
  if (string.byte(text, at) or 0) > 32 then
    return at
  end
  return string.find(text, "[^ \t\r\n]", at) or #text + 1
end

-- The items of a list or an object, from behind its bracket to behind the closing one.
local function decode_items(text, at, depth, close, add)
  at = skip(text, at)
  if string.sub(text, at, at) == close then
    return at + 1
  end
  while true do
    at = skip(text, add(skip(text, at), depth))
    local char = string.sub(text, at, at)
    at = at + 1
    if char == close then
      return at
    elseif char ~= "," then
      error("no comma")
    end
  end
end

local function decode_object(text, at, depth)
  local found = {}
  at = decode_items(text, at, depth, "}", function(here)
    if string.sub(text, here, here) ~= '"' then
      error("no key")
    end
    local key, behind = decode_string(text, here + 1)
    behind = skip(text, behind)
    if string.sub(text, behind, behind) ~= ":" then
      error("no colon")
    end
    found[key], behind = decode_value(text, skip(text, behind + 1), depth + 1)
    return behind
  end)
  return found, at
end

local function decode_list(text, at, depth)
  local found = setmetatable({}, ARRAY)
  at = decode_items(text, at, depth, "]", function(here)
    local behind
    found[#found + 1], behind = decode_value(text, here, depth + 1)
    return behind
  end)
  return found, at
end

local WORDS = { ["true"] = true, ["false"] = false, ["null"] = NULL }

function decode_value(text, at, depth)
  if depth > DEPTH_LIMIT then
    error("too deep")
  end
  local char = string.sub(text, at, at)
  if char == '"' then
    return decode_string(text, at + 1)
  elseif char == "{" then
    return decode_object(text, at + 1, depth)
  elseif char == "[" then
    return decode_list(text, at + 1, depth)
  end
  local word = string.match(text, "^%a+", at)
  if word and WORDS[word] ~= nil then
    return WORDS[word], at + #word
  end
  local number = string.match(text, "^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  return tonumber(number or error("no value")) or error("a bad number"), at + #number
end

-- Whether a decoded value is a list, an object.
function M.is_list(value)
  return type(value) == "table" and getmetatable(value) == ARRAY
end

function M.is_object(value)
  return type(value) == "table" and value ~= NULL and getmetatable(value) ~= ARRAY
end

-- The value of a JSON text (null is M.NULL); nil and the reason where it is none. Bounded in depth; the rest is bounded
-- by the text's length.
function M.decode(text)
  local fine, value, at = pcall(decode_value, text, skip(text, 1), 0)
  if not fine then
    return nil, tostring(value)
  elseif skip(text, at) <= #text then
    return nil, "more behind the end"
  end
  return value
end

return M
