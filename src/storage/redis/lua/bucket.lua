-- KEYS: the bucket. ARGV: tokens wanted, tokens given back, then capacity and microseconds of each
-- window. The value is, per window, tokens I8 and the moment I8 up to which it was refilled. Gives
-- the tokens taken.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local was = redis.call('GET', KEYS[1]) or ''
local windows = (#ARGV - 2) / 2
-- Other windows are another bucket: it begins full.
if #was ~= windows * 16 then was = '' end
local taken, tokens, filled = tonumber(ARGV[1]), {}, {}
for at = 1, windows do
  local capacity, period = tonumber(ARGV[1 + at * 2]), tonumber(ARGV[2 + at * 2])
  local left, since = capacity, now
  if was ~= '' then
    left, since = struct.unpack('<I8I8', was, at * 16 - 15)
    local fresh = math.floor(math.min(now - since, period) * capacity / period)
    if left + fresh >= capacity then
      left, since = capacity, now
    elseif fresh > 0 then
      left, since = left + fresh, since + math.floor(fresh * period / capacity)
    end
  end
  left = math.min(left + tonumber(ARGV[2]), capacity)
  tokens[at], filled[at] = left, math.min(since, now)
  taken = math.min(taken, left)
end
local value = ''
for at = 1, windows do
  value = value .. struct.pack('<I8I8', tokens[at] - taken, filled[at])
end
redis.call('SET', KEYS[1], value)
return taken
