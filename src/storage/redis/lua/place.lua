-- Where an APPLICATION client stands in its log. The value of KEYS[1] is a version B, the incarnation
-- c8, the epoch c8 (big endian), the length H of the identity, the identity, and what its node makes
-- of it. ARGV: the identity, the incarnation, the epoch, what is to be done, a value.
-- Gives -1 when a newer connection or another session has it, 0 when nothing is there, else a value.
local pack, unpack, sub, call = struct.pack, struct.unpack, string.sub, redis.call
local identity, incarnation, epoch, what = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local function newer(a, b)
  local a_high, a_low = unpack('>I4I4', a)
  local b_high, b_low = unpack('>I4I4', b)
  return a_high > b_high or (a_high == b_high and a_low > b_low)
end
local function save(value)
  call('SET', KEYS[1], pack('<Bc8c8H', 1, incarnation, epoch, #identity) .. identity .. value)
end
local held, known = call('GET', KEYS[1]), nil
if held then
  local version, of, by, length, at = unpack('<Bc8c8H', held)
  if version ~= 1 then error('SLUICE this place was written by a later version') end
  if sub(held, at, at + length - 1) ~= identity then error('SLUICE two ids share this key') end
  local same = of == incarnation
  if what == 'remove' then
    if same then call('DEL', KEYS[1]) end
    return 0
  end
  if what ~= 'look' and newer(by, epoch) then return -1 end
  if what == 'put' and not same then return -1 end
  if same then known = sub(held, at + length) end
end
if what == 'put' then
  save(ARGV[5])
  return 0
end
if what == 'claim' then save(known or '') end
if not known or known == '' then return 0 end
return known
