-- For counts by consumer, which monitoring reads. Few cursors fail and few dead letters exist, so these indexes are small.
create index cursors_failing on cursors(consumer) where attempts > 0 and due is not null;
create index dead_letters_counted on dead_letters(consumer, in_doubt) where state = 'dead';
