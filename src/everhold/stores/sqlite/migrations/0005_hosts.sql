-- What hosts on one store know of each other. A store that is opened by one process needs none of it.

-- A row stays when its account is released, so that a fence is never used twice.
create table account_leases (
  account      text primary key,
  owner        text not null default '',
  fence        integer not null default 0,
  lease_since  real not null default 0,
  lease_wait   real not null default 0
) without rowid;

create table hosts (
  id           text primary key,
  name         text not null,
  program      text not null,
  schema       integer not null,
  url          text not null default '',
  started      real not null,
  lease_since  real not null,
  lease_wait   real not null,
  draining     integer not null default 0
) without rowid;
