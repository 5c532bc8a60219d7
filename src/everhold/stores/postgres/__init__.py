"""The store on PostgreSQL: any number of hosts share it."""

from everhold.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
