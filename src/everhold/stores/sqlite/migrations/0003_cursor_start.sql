-- Where a cursor began. Everything from there to its processed seq was its to deliver, so the audit can ask for it.
-- A cursor of schema 2 began before the first item that it settled, or where it is.

alter table cursors add column start_seq integer not null default 0;
update cursors set start_seq = min(processed_seq, coalesce(
  (select min(seq) - 1 from (
    select seq from receipts r where r.session = cursors.session and r.consumer = cursors.consumer and r.part >= 0
    union all
    select seq from dead_letters d where d.session = cursors.session and d.consumer = cursors.consumer and d.part >= 0
  )), processed_seq));
