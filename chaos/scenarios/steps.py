"""The steps of each scenario, between a queue that is synchronised and the final drain.

Steps raise `TimeoutError` when the cluster does not do what it must in time (the run counts as hung), and
`ScenarioError` when the cluster is not in the state that the experiment is about (the run proves nothing).
"""

from __future__ import annotations

from chaos.scenarios.model import Stage

#: Phase of `unsafe_promotion` in which only the master holds what is confirmed.
MIRROR_ABSENT = "mirror absent"
#: Messages confirmed between two steps, so that every state of the cluster carries traffic.
CONFIRMED_BETWEEN_STEPS = 1_000
#: The kill lands somewhere within this many further confirms, drawn from the seed.
KILL_JITTER_CONFIRMS = 1_000


class ScenarioError(Exception):
    """The cluster cannot be brought into the state that the scenario needs."""


async def control(stage: Stage) -> None:
    """Publish and consume; nothing else happens."""
    stage.phase("steady")
    stage.traffic.start_consumers()
    await stage.traffic.publish(stage.options.messages, _publish_timeout_s(stage, stage.options.messages))


async def kill_master(stage: Stage) -> None:
    """Kill the master, wait for the promotion, restart it, wait until it is synchronised again; repeat."""
    traffic, observer, options = stage.traffic, stage.observer, stage.options
    mirrors = len(stage.nodes) - 1
    traffic.start_consumers()
    traffic.publish_without_limit()
    for failover in range(1, options.failovers + 1):
        stage.phase(f"steady {failover}")
        await stage.confirmed_more(CONFIRMED_BETWEEN_STEPS + stage.chance.randrange(KILL_JITTER_CONFIRMS))
        victim = stage.master
        stage.phase(f"failover {failover}: kill -9 {victim}")
        await stage.nemesis.kill(victim)
        await observer.wait_promotion(failover, options.step_timeout_s)
        await stage.confirmed_more(CONFIRMED_BETWEEN_STEPS)
        stage.phase(f"rejoin {failover}: {victim} returns")
        await stage.nemesis.restart(victim, options.step_timeout_s)
        await observer.wait_synchronised(mirrors, options.step_timeout_s)
    stage.phase("steady after the last failover")
    missing = max(CONFIRMED_BETWEEN_STEPS, options.messages - traffic.confirmed_count)
    goal = traffic.confirmed_count + missing
    await traffic.wait_for(
        lambda: traffic.confirmed_count >= goal, f"{goal} confirms", _publish_timeout_s(stage, missing)
    )


async def unsafe_promotion(stage: Stage) -> None:
    """Confirm messages while the only mirror is dead, bring it back empty, confirm more, kill the master.

    Nothing is consumed before the promotion, so what the mirror lacks is exactly what was confirmed while it was away.
    """
    traffic, observer, options = stage.traffic, stage.observer, stage.options
    master, mirror = stage.master, stage.sample.mirrors[0]
    half = options.messages // 2
    stage.phase(MIRROR_ABSENT)
    await stage.nemesis.kill(mirror)
    await observer.wait_mirrors(set(), options.step_timeout_s)
    await traffic.publish(half, _publish_timeout_s(stage, half))
    stage.phase("mirror unsynchronised")
    await stage.nemesis.restart(mirror, options.step_timeout_s)
    await observer.wait_mirrors({mirror}, options.step_timeout_s)
    await observer.wait_streaming({mirror}, options.step_timeout_s)
    await traffic.publish(options.messages - half, _publish_timeout_s(stage, options.messages - half))
    if stage.sample.synchronised:
        raise ScenarioError(f"{mirror} is synchronised although nobody asked for it: the promotion would be safe")
    stage.phase(f"promotion: kill -9 {master}")
    await stage.nemesis.kill(master)
    await observer.wait_promotion(1, options.step_timeout_s)
    stage.phase(f"rejoin: {master} returns")
    await stage.nemesis.restart(master, options.step_timeout_s)
    await observer.wait_mirrors({master}, options.step_timeout_s)
    traffic.start_consumers()
    await traffic.publish(half, _publish_timeout_s(stage, half))


def _publish_timeout_s(stage: Stage, count: int) -> float:
    """Ten times what the asked rate needs: a slow cluster is slow, not hung."""
    return stage.options.step_timeout_s + 10 * count / stage.options.traffic.rate
