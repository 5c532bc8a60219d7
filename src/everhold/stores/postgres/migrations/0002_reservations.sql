-- What running calls may still take from budgets. A host renews its reservations; those of a host that died end.
create table reservations (
  budget       text collate "C" not null,
  id           text collate "C" not null,
  usd          double precision not null,
  tokens       bigint not null,
  lease_since  double precision not null,
  lease_wait   double precision not null,
  primary key (budget, id)
);
create index reservations_id on reservations(id);

-- Who reserves in a budget locks its row, so that two hosts never take the same rest. What was spent is added without.
create table budget_locks (
  budget  text collate "C" primary key
) with (fillfactor = 50);
