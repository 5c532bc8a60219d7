-- What running calls may still take from budgets. A host renews its reservations; those of a host that died end.
create table reservations (
  budget       text not null,
  id           text not null,
  usd          real not null,
  tokens       integer not null,
  lease_since  real not null,
  lease_wait   real not null,
  primary key (budget, id)
) without rowid;
create index reservations_id on reservations(id);
