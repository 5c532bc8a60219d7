-- The tables of the SQLite store, with the same names and columns. What differs has a comment.
-- Names are compared byte by byte, as SQLite does, whatever the collation of the database is.

-- One row. pos = (xid + pos_base) * 65536 + the number of the entry in its transaction. After a restore into another
-- cluster transaction ids begin again, so `pos_base` is raised, and the incarnation changes.
create table store_info (
  id              integer primary key check (id = 1),
  incarnation     text not null,
  cluster         text not null,
  pos_base        bigint not null,
  schema_version  integer not null,
  -- Programs that know a lower version must not use this schema.
  oldest_version  integer not null
);

create table sessions (
  id          text collate "C" primary key,
  agent       text collate "C" not null,
  address     text collate "C" not null,
  next_seq    bigint not null default 1,
  generation  bigint not null default 0,
  erasures    bigint not null default 0,
  created     double precision not null,
  title       text collate "C" not null default '',
  parent      text collate "C" not null default '',
  parent_at   bigint not null default 0,
  choices     text not null default '{}',
  names       text not null default '{}'
) with (fillfactor = 70);
create index sessions_title on sessions(lower(title)) where title <> '';
create index sessions_parent on sessions(parent) where parent <> '';
create index sessions_opened on sessions(agent, address);

create table entries (
  session  text collate "C" not null,
  seq      bigint not null,
  pos      bigint not null,
  kind     text collate "C" not null,
  op       bigint,
  author   text collate "C" not null,
  at       double precision not null,
  version  integer not null,
  body     text,
  salt     bytea,
  digest   bytea not null,
  dedup    text collate "C",
  primary key (session, seq)
);
create unique index entries_pos on entries(pos);
create unique index entries_dedup on entries(dedup) where dedup is not null;
create index entries_notes on entries(pos) where kind in ('noted', 'erased');
create index entries_compressions on entries(pos) where kind = 'compressed';

create table pending (
  session  text collate "C" not null,
  seq      bigint not null,
  asks     boolean not null,
  primary key (session, seq)
);

create table operations (
  session      text collate "C" not null,
  op           bigint not null,
  type         text collate "C" not null,
  state        text collate "C" not null,
  first        bigint not null,
  last         bigint not null default 0,
  consumer     text collate "C" not null default '',
  fence        bigint not null default 0,
  attempts     bigint not null default 0,
  paused       boolean not null default false,
  blocking     boolean not null default false,
  covers       bigint not null default 0,
  undone_at    bigint not null default 0,
  compression  bigint not null default 0,
  stop         boolean not null default false,
  primary key (session, op)
) with (fillfactor = 70);
create unique index operations_one_turn on operations(session) where state = 'running' and (type = 'turn' or blocking);
create unique index operations_one_compression on operations(session) where state = 'running' and type = 'compression';
create index operations_running on operations(session, consumer) where state = 'running';
create index operations_view on operations(session, type, op);
create index operations_undone on operations(session, first, last) where undone_at > 0;

create table cursors (
  consumer       text collate "C" not null,
  session        text collate "C" not null,
  start_seq      bigint not null default 0,
  processed_seq  bigint not null default 0,
  in_flight      text,
  attempts       bigint not null default 0,
  since          double precision,
  wait           double precision not null default 0,
  due            double precision,
  mandatory      boolean not null default false,
  owner          text collate "C" not null default '',
  lease_since    double precision not null default 0,
  lease_wait     double precision not null default 0,
  fence          bigint not null default 0,
  error          text not null default '',
  waits_for      text collate "C" not null default '',
  -- When the cursor may be claimed: when it is due, or when its lease ends. Null if there is nothing to do.
  free           double precision generated always as (
    case when due is null then null when owner = '' then due else greatest(due, lease_since + lease_wait) end) stored,
  primary key (session, consumer)
) with (fillfactor = 70);
create index cursors_free on cursors(consumer, free, session) where free is not null;

create table dead_letters (
  id        bigint generated always as identity primary key,
  consumer  text collate "C" not null,
  session   text collate "C" not null,
  seq       bigint not null,
  part      bigint not null default 0,
  key       text collate "C" not null default '',
  reason    text not null default '',
  in_doubt  boolean not null default false,
  at        double precision not null,
  state     text collate "C" not null default 'dead'
);
create index dead_letters_state on dead_letters(state, session, consumer);

create table receipts (
  session   text collate "C" not null,
  seq       bigint not null,
  part      bigint not null,
  consumer  text collate "C" not null,
  key       text collate "C" not null default '',
  remote    text collate "C" not null default '',
  in_doubt  boolean not null default false,
  at        double precision not null,
  primary key (session, seq, part, consumer)
);
create index receipts_consumer on receipts(consumer, session);
create index receipts_in_doubt on receipts(session) where in_doubt;

create table bindings (
  address  text collate "C" primary key,
  session  text collate "C" not null
);
create index bindings_session on bindings(session);

create table state_records (
  namespace  text collate "C" not null,
  scope      text collate "C" not null,
  key        text collate "C" not null,
  value      text not null,
  version    bigint not null,
  primary key (namespace, scope, key)
) with (fillfactor = 70);
-- The highest version of any deleted record. A new record starts above it, so a version is never used twice for a key.
create table state_floor (
  id       integer primary key check (id = 1),
  version  bigint not null
);
insert into state_floor(id, version) values (1, 0);

-- Many turns of one agent end at once, so a budget has several rows per day, and a reader adds them up.
create table spending (
  budget  text collate "C" not null,
  day     text collate "C" not null,
  shard   integer not null,
  usd     double precision not null default 0,
  tokens  bigint not null default 0,
  primary key (budget, day, shard)
) with (fillfactor = 70);

create table blobs (
  digest  text collate "C" primary key,
  data    bytea not null
);

create table people_log (
  n         bigint primary key,
  at        double precision not null,
  by        text collate "C" not null default '',
  action    text collate "C" not null,
  person    text collate "C" not null,
  identity  text collate "C" not null default '',
  proof     text collate "C" not null default '',
  since     double precision not null default 0,
  note      text collate "C" not null default ''
);
create index people_log_unlinked on people_log(identity, person) where action = 'unlinked';

create table persons (
  id            text collate "C" primary key,
  label         text collate "C" not null default '',
  merged_into   text collate "C" not null default '',
  forgotten_at  double precision not null default 0
);
create unique index persons_label on persons(label) where label <> '';

create table identities (
  identity  text collate "C" primary key,
  person    text collate "C" not null,
  proof     text collate "C" not null,
  since     double precision not null default 0,
  at        double precision not null,
  former    text collate "C" not null default ''
);
create index identities_person on identities(person);

create table peers (
  memory    text collate "C" not null,
  agent     text collate "C" not null,
  identity  text collate "C" not null,
  from_pos  bigint not null,
  peer      text collate "C" not null,
  source    text collate "C" not null default '',
  shared    boolean not null default false,
  primary key (memory, agent, identity, from_pos)
);
create index peers_peer on peers(memory, agent, peer);

-- A transaction that decides by shared state records locks this table, and so does one that writes such a record.
create table state_version (
  id       integer primary key check (id = 1),
  version  bigint not null
);
insert into state_version(id, version) values (1, 0);

create table account_leases (
  account      text collate "C" primary key,
  owner        text collate "C" not null default '',
  fence        bigint not null default 0,
  lease_since  double precision not null default 0,
  lease_wait   double precision not null default 0
) with (fillfactor = 70);

create table hosts (
  id           text collate "C" primary key,
  name         text not null,
  program      text not null,
  schema       integer not null,
  url          text not null default '',
  started      double precision not null,
  lease_since  double precision not null,
  lease_wait   double precision not null,
  draining     boolean not null default false
) with (fillfactor = 70);
