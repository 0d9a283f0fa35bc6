package redisstream

import "github.com/redis/go-redis/v9"

// Scripts work on one stream, KEYS[1], so that they run on a cluster too. The
// group is ARGV[1] and the consumer ARGV[2]. XCLAIM always gets RETRYCOUNT where
// the count must not grow, and the idle time is compared here and not by XCLAIM,
// since embedded Redis ignores its minimum. XCLAIM leaves out entries that are
// no longer in the stream: they are acked, so that nothing stays pending for
// ever, and returned as gone.

// ownedPrelude defines owned(first, last): the ids in that range which the
// consumer owns; and claim(to, ids, opts...): XCLAIM in chunks that Lua can
// unpack, appending to got what came back.
const ownedPrelude = `
local key, group, me = KEYS[1], ARGV[1], ARGV[2]
local function owned(first, last)
  local set = {}
  for _, row in ipairs(redis.call('XPENDING', key, group, first, last, 10000000, me)) do
    set[row[1]] = true
  end
  return set
end
local function claim(to, ids, got, opts)
  for i = 1, #ids, 1000 do
    local args = {'XCLAIM', key, group, to, 0}
    for j = i, math.min(i + 999, #ids) do args[#args + 1] = ids[j] end
    for _, o in ipairs(opts) do args[#args + 1] = o end
    for _, e in ipairs(redis.call(unpack(args))) do
      if e then got[#got + 1] = e end
    end
  end
end
local function clear(ids, got, just, gone)
  local here = {}
  for _, e in ipairs(got) do
    if just then here[e] = true else here[e[1]] = true end
  end
  for _, id in ipairs(ids) do
    if not here[id] then
      redis.call('XACK', key, group, id)
      gone[#gone + 1] = id
    end
  end
end
`

// renewScript takes pairs of id and count, sorted by id, and resets the idle
// time of those that the consumer owns. It returns {lost, gone}.
var renewScript = redis.NewScript(ownedPrelude + `
local mine = owned(ARGV[3], ARGV[#ARGV - 1])
local lost, gone, byCount = {}, {}, {}
for i = 3, #ARGV, 2 do
  local id, n = ARGV[i], ARGV[i + 1]
  if mine[id] then
    byCount[n] = byCount[n] or {}
    table.insert(byCount[n], id)
  else
    lost[#lost + 1] = id
  end
end
for n, ids in pairs(byCount) do
  local got = {}
  claim(me, ids, got, {'RETRYCOUNT', n, 'JUSTID'})
  clear(ids, got, true, gone)
end
return {lost, gone}`)

// loadScript is renewScript that returns the entries: {entries, gone}.
var loadScript = redis.NewScript(ownedPrelude + `
local mine = owned(ARGV[3], ARGV[#ARGV - 1])
local entries, gone, byCount = {}, {}, {}
for i = 3, #ARGV, 2 do
  local id, n = ARGV[i], ARGV[i + 1]
  if mine[id] then
    byCount[n] = byCount[n] or {}
    table.insert(byCount[n], id)
  end
end
for n, ids in pairs(byCount) do
  local got = {}
  claim(me, ids, got, {'RETRYCOUNT', n})
  clear(ids, got, false, gone)
  for _, e in ipairs(got) do entries[#entries + 1] = e end
end
return {entries, gone}`)

// releaseScript takes triples of id, count and idle time, sorted by id, and
// gives those that the consumer owns to the consumer ARGV[3]. It returns gone.
var releaseScript = redis.NewScript(ownedPrelude + `
local to, mine = ARGV[3], owned(ARGV[4], ARGV[#ARGV - 2])
local gone, groups, order = {}, {}, {}
for i = 4, #ARGV, 3 do
  local id, n, idle = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if mine[id] then
    local k = n .. '/' .. idle
    if not groups[k] then
      groups[k] = {n = n, idle = idle, ids = {}}
      order[#order + 1] = k
    end
    table.insert(groups[k].ids, id)
  end
end
for _, k in ipairs(order) do
  local g, got = groups[k], {}
  claim(to, g.ids, got, {'IDLE', g.idle, 'RETRYCOUNT', g.n, 'JUSTID'})
  clear(g.ids, got, true, gone)
end
return gone`)

// claimScript takes over what the pseudo consumer ARGV[5] holds and, when
// ARGV[6] is 1, what has been idle for ARGV[3] milliseconds; ARGV[4] entries at
// most. Their counts stay as they are: a delivery counts when a handler gets the
// entry. It returns {entries, counts, gone, own}: counts, this delivery included,
// in the order of entries, own being pairs of id and count that this consumer let idle for so long.
var claimScript = redis.NewScript(ownedPrelude + `
local limit, released = tonumber(ARGV[4]), ARGV[5]
local ids, count, own, gone, got = {}, {}, {}, {}, {}
local function add(row)
  ids[#ids + 1] = row[1]
  count[row[1]] = row[4] + 1
end
for _, row in ipairs(redis.call('XPENDING', key, group, '-', '+', limit, released)) do add(row) end
if ARGV[6] == '1' and #ids < limit then
  for _, row in ipairs(redis.call('XPENDING', key, group, 'IDLE', ARGV[3], '-', '+', 2 * limit + 1000)) do
    if #ids >= limit then break end
    if row[2] == me then
      own[#own + 1] = row[1]
      own[#own + 1] = row[4]
    elseif row[2] ~= released then
      add(row)
    end
  end
end
if #ids > 0 then
  local byCount, order = {}, {}
  for _, id in ipairs(ids) do
    local n = count[id] - 1
    if not byCount[n] then
      byCount[n] = {}
      order[#order + 1] = n
    end
    table.insert(byCount[n], id)
  end
  for _, n in ipairs(order) do claim(me, byCount[n], got, {'RETRYCOUNT', n}) end
  clear(ids, got, false, gone)
end
local counts = {}
for i, e in ipairs(got) do counts[i] = count[e[1]] end
return {got, counts, gone, own}`)

// leaveScript removes the consumer unless it has pending entries, which would
// be lost with it.
var leaveScript = redis.NewScript(`
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// infoPrelude defines rec(t): the fields of one entry of an XINFO reply.
const infoPrelude = `
local function rec(t)
  local r = {}
  for i = 1, #t, 2 do r[t[i]] = t[i + 1] end
  return r
end
`

// sweepScript removes consumers without pending entries that were idle for
// ARGV[3] milliseconds, ARGV[2] excepted, and returns their names.
var sweepScript = redis.NewScript(infoPrelude + `
local out = {}
for _, t in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local c = rec(t)
  if c.name ~= ARGV[2] and c.pending == 0 and c.idle >= tonumber(ARGV[3]) and
     #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, c.name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c.name)
    out[#out + 1] = c.name
  end
end
return out`)

// trimScript removes entries that every group has acked and that are older than
// ARGV[1] milliseconds; ARGV[2] is '~' (whole nodes) or '='. It returns how many.
var trimScript = redis.NewScript(infoPrelude + `
local now = redis.call('TIME')
local ms, seq = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - tonumber(ARGV[1]), 0
local function lower(id, plus)
  local a, b = string.match(id, '^(%d+)-?(%d*)$') -- embedded Redis keeps a group's id as it was given: '0'
  a, b = tonumber(a), (tonumber(b) or 0) + plus
  if a < ms or (a == ms and b < seq) then ms, seq = a, b end
end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then return 0 end
for _, t in ipairs(groups) do
  local g = rec(t)
  lower(g['last-delivered-id'], 1)
  local pending = redis.call('XPENDING', KEYS[1], g.name)
  if pending[1] > 0 then lower(pending[2], 0) end
end
if ms <= 0 then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2], string.format('%.0f-%.0f', ms, seq))`)

// countScript counts the entries after the id ARGV[1], ten thousand at most. It
// returns the number and the id of the last one counted.
var countScript = redis.NewScript(`
local n, last = 0, ARGV[1]
for _ = 1, 10 do
  local page = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1000)
  n = n + #page
  if #page > 0 then last = page[#page][1] end
  if #page < 1000 then break end
end
return {n, last}`)
