"""Jobs, their attempts, what happened to them, and the counters of the store."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False, unique=True),
        sa.Column("touched", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("data_gb", sa.Float, nullable=False),
        sa.Column("epochs", sa.Float, nullable=False),
        sa.Column("gpu_mem_gib", sa.Float, nullable=False),
        sa.Column("mem_gib", sa.Float, nullable=False),
        sa.Column("cpu_cores", sa.Float, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("deadline_s", sa.Float),
        sa.Column("origin", sa.String, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("card", sa.String),
        sa.Column("promised_at", sa.Float),
        sa.Column("queued_at", sa.Float, nullable=False),
        sa.Column("not_before", sa.Float, nullable=False),
        sa.Column("cancel_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("reason", sa.Text, nullable=False),
        sa.UniqueConstraint("tenant", "key"),
    )
    op.create_index("jobs_state", "jobs", ["state"])
    op.create_index("jobs_touched", "jobs", ["touched"])
    op.create_index("jobs_tenant_state", "jobs", ["tenant", "state"])
    op.create_table(
        "attempts",
        sa.Column("job", sa.String, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("cluster", sa.String, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("card", sa.String, nullable=False),
        sa.Column("strategy", sa.String, nullable=False),
        sa.Column("decided_at", sa.Float, nullable=False),
        sa.Column("arrives_at", sa.Float, nullable=False),
        sa.Column("predicted_end", sa.Float),
        sa.Column("waited_for", sa.Text, nullable=False),
        sa.Column("tried_at", sa.Float),
        sa.Column("submitted_at", sa.Float),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("outcome", sa.String),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("log", sa.Text, nullable=False),
        sa.Column("exported", sa.Integer, nullable=False),
    )
    op.create_index("attempts_card_end", "attempts", ["card", "ended_at"])
    op.create_index("attempts_exported", "attempts", ["exported", "ended_at"])
    op.create_table(
        "moves",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("moves_job", "moves", ["job"])
    meta = op.create_table(
        "meta", sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.BigInteger, nullable=False)
    )
    op.bulk_insert(meta, [{"name": "seq", "value": 0}, {"name": "epoch", "value": 0}])
