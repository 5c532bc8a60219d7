-- A lane is woken, taken and let go of with every turn, and each of its indexes was a page more to write each time.
-- A session's flights are found by the table's own key; whoever holds lanes knows which; waits that began in the future
-- are looked for only where the clock was seen to go back.
drop index lanes_owner;
drop index lanes_flight;
drop index lanes_since;
