-- Processes keep copies of some state records. Each write to one of those raises this version, so that no decision by an
-- outdated copy is committed.
create table state_version (
  id       integer primary key check (id = 1),
  version  integer not null
);
insert into state_version(id, version) values (1, 0);
