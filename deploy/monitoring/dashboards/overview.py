"""Overview and objectives: is it well, how fresh is the lake, what is left of the error budget."""

from deploy.monitoring.alerts.objectives import GOOD, OBJECTIVE, TARGET
from deploy.monitoring.dashboards.panels import GREEN, RATE, RED, YELLOW, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import least, over, total, worst
from sluice.contract.table_state import State
from sluice.telemetry import catalogue as known

_STATES = f"sum by (pipeline, state) ({shown(known.STATE)}) == 1"
_RECORDED = f"{GOOD}{{{shown.scope}}}"

STATE_ROW = Row(
    "State",
    (
        Panel(
            title="State of ingest",
            description="What ingest is doing now. If it does not stream for minutes, an alert fires.",
            kind="stat",
            unit="none",
            queries=(Query(_STATES, "{{pipeline}}: {{state}}"),),
            width=4,
            height=5,
        ),
        Panel(
            title="Health",
            description="The state that `sluice status` shows. For every state except healthy, a problem below "
            "says why.",
            kind="stat",
            unit="none",
            queries=(Query(f"sum by (pipeline, state) ({shown(known.HEALTH)}) == 1", "{{pipeline}}: {{state}}"),),
            width=4,
            height=5,
        ),
        Panel(
            title="Alerts that fire",
            description="Alerts of Sluice that fire for the chosen pipelines. Each has a runbook of its name.",
            kind="stat",
            unit="none",
            queries=(
                Query(
                    "count by (pipeline) "
                    '(ALERTS{pipeline=~"$pipeline",alertname=~"Sluice.*",alertstate="firing"}) or '
                    "vector(0)",
                    "alerts",
                ),
            ),
            steps=((None, GREEN), (1, RED)),
            width=3,
            height=5,
        ),
        Panel(
            title="Freshness of the slowest table",
            description="How far the lake is behind the source: the age of the oldest change that a table lacks, "
            "in the spool or before it. 0 when none.",
            kind="stat",
            unit="s",
            queries=(Query(worst(shown(known.APPLY_FRESHNESS, quantile_of_tables="max"))),),
            steps=((None, GREEN), (60, YELLOW), (TARGET.default, RED)),
            width=5,
            height=5,
        ),
        Panel(
            title="Fresh now",
            description=f"Whether every followed table is fresher than the target (by default {TARGET.default} "
            "s). Recorded by the rules of Sluice.",
            kind="stat",
            unit="none",
            queries=(Query(_RECORDED),),
            words=((1, "fresh", GREEN), (0, "behind", RED)),
            steps=((None, RED), (1, GREEN)),
            width=4,
            height=5,
        ),
        Panel(
            title="Tables that are not followed",
            description="Stale, with a gap, or quarantined. `sluice tables` names them and says why.",
            kind="stat",
            unit="none",
            queries=(
                Query(
                    total(shown(known.PROBLEMS, code=("table.stale", "table.gap", "table.quarantined"))),
                ),
            ),
            steps=((None, GREEN), (1, RED)),
            width=4,
            height=5,
        ),
    ),
)

OBJECTIVES_ROW = Row(
    "Objective: freshness",
    (
        Panel(
            title="Time fresh in the range shown",
            description="Share of the time in which every followed table was fresh. The objective is by default "
            f"{OBJECTIVE.default:.0%}.",
            kind="gauge",
            unit="percentunit",
            queries=(Query(f"avg_over_time({_RECORDED}[$__range])"),),
            steps=((None, RED), (OBJECTIVE.default, GREEN)),
            least=0,
            most=1,
            width=6,
        ),
        Panel(
            title="Burn of the error budget",
            description="How many times faster than allowed the budget is spent, over one and six hours, with "
            "the default objective. 14.4 over an hour pages.",
            unit="short",
            queries=tuple(
                Query(
                    f"(1 - avg_over_time({_RECORDED}[{window}])) / (1 - {OBJECTIVE.default})",
                    f"{{{{pipeline}}}} over {window}",
                )
                for window in ("1h", "6h")
            ),
            steps=((None, GREEN), (1, YELLOW), (14.4, RED)),
            width=9,
        ),
        Panel(
            title="Freshness over tables",
            description="The slowest table, the 95th percentile, and the median.",
            unit="s",
            queries=(
                Query(worst(shown(known.APPLY_FRESHNESS), "quantile_of_tables"), "{{pipeline}} {{quantile_of_tables}}"),
            ),
            width=9,
        ),
    ),
)

FLOW_ROW = Row(
    "Flow",
    (
        Panel(
            title="Behind the source, by stage",
            description="The least time for which each stage has been behind: received, durable in the spool, in "
            "the lake.",
            unit="s",
            queries=(Query(worst(shown(known.LAG_SECONDS), "stage"), "{{pipeline}} {{stage}}"),),
        ),
        Panel(
            title="Rows made durable",
            description="Row changes written to the spool, by kind of change.",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.ROWS), RATE), "op"), "{{pipeline}} {{op}}"),),
            stacked=True,
        ),
        Panel(
            title="Time until the slot may be lost",
            description="Forecast for a slot that advances no further while WAL is written as in the last minutes.",
            unit="s",
            queries=(Query(least(shown(known.SLOT_SECONDS_LEFT))),),
            quiet="absent without a limit on retained WAL, and while nothing is written",
        ),
        Panel(
            title="Tables by state",
            description="The worse of what ingest and applier say of each table: " + ", ".join(State) + ".",
            unit="none",
            queries=(Query(total(shown(known.TABLES), "state") + " > 0", "{{pipeline}} {{state}}"),),
            stacked=True,
            width=12,
        ),
        Panel(
            title="Problems",
            description="The problems that `sluice status` shows, by code. docs/problems.md says what each means "
            "and what to do.",
            unit="none",
            queries=(Query(total(shown(known.PROBLEMS), "code") + " > 0", "{{pipeline}} {{code}}"),),
            stacked=True,
            quiet="there is none",
        ),
        Panel(
            title="Errors",
            description="Errors by place and class. Those that are not tried again alert.",
            unit="ops",
            queries=(
                Query(
                    total(over("rate", shown(known.ERRORS), RATE), "component", "class"),
                    "{{pipeline}} {{component}} {{class}}",
                ),
            ),
            width=12,
            quiet="no error has come up",
        ),
    ),
)

BOARD = Dashboard(
    "sluice-overview",
    "Sluice / Overview and objectives",
    "Whether every pipeline is healthy, how fresh its lake is, and how much of the error budget is left.",
    (STATE_ROW, OBJECTIVES_ROW, FLOW_ROW),
)
