"""What alembic runs; the connection, with its transaction, is the store's."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
