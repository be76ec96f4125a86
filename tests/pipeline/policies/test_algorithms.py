"""Every algorithm learns, keeps to the mask, and is SB3's: learn, save, load, stock policies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO
from stable_baselines3.common.type_aliases import DictReplayBufferSamples

from pipeline.parity import draw
from pipeline.policies import algorithms
from pipeline.policies.dqn import MaskedDQN, QScorer
from pipeline.policies.off_policy import EPSILON, masked, random_feasible
from pipeline.policies.qmix import Mixer, QMix
from pipeline.policies.sac import DiscreteSAC
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import TorchPolicy
from pipeline.policies.settings import WORDS, read
from pipeline.policies.training import train
from sched_env import problems
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire.contracts.bundle import MASKED_SCORE
from wire.errors import ConfigError

SPEC = problems.spec("functions")
OFF_POLICY = {"envs": 16, "rollouts_per_segment": 16, "hidden": 16, "learning_starts": 256}
LESSONS = {
    "maskable_ppo": {"envs": 16, "rollout_steps": 32, "rollouts_per_segment": 1, "segments": 12, "batch": 128,
                     "hidden": 16, "teacher": "", "learning_rate": 0.003},
    "ppo": {"envs": 16, "rollout_steps": 32, "rollouts_per_segment": 1, "segments": 12, "batch": 128, "hidden": 16,
            "learning_rate": 0.003},
    "a2c": {"rollouts_per_segment": 32, "segments": 8, "hidden": 16},
    "dqn": OFF_POLICY | {"segments": 8},
    "sac": OFF_POLICY | {"segments": 8},
    "qmix": OFF_POLICY | {"segments": 12},
}  # fmt: skip
MARGIN = 0.05
"""Better than random feasible placement by this share of its return."""


def tensors(rows, size, seed):
    candidates, request, mask = map(torch.from_numpy, draw(SPEC, rows=rows, size=size, seed=seed))
    return {"candidates": candidates, "request": request, "mask": mask}


@pytest.fixture
def env(tiny_workload):
    return Sb3VecEnv(make_vec(tiny_workload.scenario, 4, 0, tiny_workload.trace, copy=True))


@pytest.mark.parametrize("algorithm", LESSONS)
def test_it_learns_to_place_better_than_chance(tiny_workload, tmp_path, algorithm):
    starts = tiny_workload.starts(8)

    def returns(policy):
        rows = run_episodes(tiny_workload.scenario, policy, starts, trace=tiny_workload.trace)
        return float(np.mean([row["return"] for row in rows]))

    trained = train(
        lambda count: make_vec(tiny_workload.scenario, count, 0, tiny_workload.trace, copy=True),
        algorithm,
        algorithms.settings(algorithm, **LESSONS[algorithm]),
        seed=0,
        scratch=tmp_path,
        validate=lambda scorer: {"return": returns(TorchPolicy(scorer))},
        objective=lambda row: row["steps"],  # the last weights, not the luckiest
        report=lambda _segment, _row: None,
    )
    chance, first, last = returns("random_feasible"), trained.curve[0]["return"], trained.curve[-1]["return"]
    assert last > first
    assert last > chance + MARGIN * abs(chance), f"random {chance:.2f}, before {first:.2f}, after {last:.2f}"


@pytest.mark.parametrize("algorithm", LESSONS)
def test_saved_and_loaded_by_sb3_it_decides_the_same_and_learns_on(env, tmp_path, algorithm):
    tiny = {key: value for key, value in LESSONS[algorithm].items() if key != "segments"}
    tiny |= {"envs": 4, "hidden": 8} | ({"learning_starts": 8} if "learning_starts" in tiny else {})
    model = algorithms.ALGORITHMS[algorithm].make(env, algorithms.settings(algorithm, **tiny), 0, device="auto")
    before = [tensor.clone() for tensor in model.policy.scorer.parameters()]
    model.learn(128)
    assert any(not torch.equal(*pair) for pair in zip(before, model.policy.scorer.parameters(), strict=True))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=env)
    observation = env.reset()
    actions = model.predict(observation, deterministic=True)[0]
    np.testing.assert_array_equal(loaded.predict(observation, deterministic=True)[0], actions)
    assert np.take_along_axis(observation["mask"], actions[:, None], axis=1).all()
    loaded.learn(128, reset_num_timesteps=False)
    assert loaded.num_timesteps == 2 * model.num_timesteps


@pytest.mark.parametrize("kind", [MaskedDQN, DiscreteSAC, MaskablePPO])
def test_stock_policies_learn_on_our_environments_with_every_action_feasible(env, tmp_path, kind):
    """The environments raise at an infeasible action."""
    few = {"n_steps": 32, "batch_size": 32} if kind is MaskablePPO else {"learning_starts": 32, "buffer_size": 500}
    model = kind("MultiInputPolicy", env, seed=0, **few)
    model.learn(160)
    model.save(tmp_path / "model")
    seen = env.reset()
    masks = {"action_masks": seen["mask"]} if kind is MaskablePPO else {}
    first = model.predict(seen, deterministic=True, **masks)[0]
    again = kind.load(tmp_path / "model", env=env).predict(seen, deterministic=True, **masks)[0]
    np.testing.assert_array_equal(first, again)


def test_value_mixing_has_no_stock_policies(env):
    with pytest.raises(ValueError, match="unknown"):
        QMix("MultiInputPolicy", env)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 6), size=st.integers(1, 40), seed=st.integers(0, 2**20))
def test_greedy_on_the_exported_scores_is_greedy_on_the_values(rows, size, seed):
    torch.manual_seed(seed)
    observation = tensors(rows, size, seed)
    for network in (QScorer(SPEC, 8), QScorer(SPEC, 8, dueling=False), Mixer(SPEC, 8, 4)):
        with torch.no_grad():
            values = network(observation).double()
            scores = network.scorer(observation["candidates"], observation["request"], observation["mask"]).double()
        assert (values[~observation["mask"]] == MASKED_SCORE).all()
        best = scores.argmax(dim=1, keepdim=True)
        # Rounding may make two values equal; never a worse one best.
        assert (values.gather(1, best).squeeze(1) >= values.amax(dim=1) - 1e-5).all()


def test_the_mixed_value_rises_with_every_candidates_gain():
    network, observation = Mixer(SPEC, 8, 4), tensors(3, 10, 0)
    gains = network.scorer(observation["candidates"], observation["request"], observation["mask"])
    order = gains.argsort(dim=1)
    values = network(observation).gather(1, order)
    assert (values.diff(dim=1) >= -1e-6).all()


def test_epsilon_falls_as_vmagents():
    assert [EPSILON(1 - done) for done in (0, 0.25, 0.9, 1.0)] == pytest.approx([0.9, 0.5, 0.2, 0.2])
    assert EPSILON(1 - 0.125) == pytest.approx(0.7)


class Loud(torch.nn.Module):
    """Action values that are worth nothing, but for infeasible ones, which shout."""

    def __init__(self):
        super().__init__()
        self.worth = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return torch.where(observation["mask"].bool(), self.worth, torch.full((), 1e6))


@pytest.mark.parametrize("double", [False, True])
def test_a_target_never_looks_at_an_infeasible_action(env, double):
    model = MaskedDQN("MultiInputPolicy", env, learning_starts=8, buffer_size=200, seed=0, double=double)
    model.learn(32)
    seen = tensors(8, 6, 1)
    assert not seen["mask"].all()
    nothing = torch.zeros(8, 1)
    batch = DictReplayBufferSamples(seen, nothing.long(), seen, nothing, nothing)
    model.replay_buffer.sample = lambda *_given, **_named: batch
    model.q_net = model.q_net_target = Loud()
    model.policy.optimizer = torch.optim.SGD(model.q_net.parameters(), lr=0.1)
    model.train(1)
    assert model.logger.name_to_value["train/loss"] == 0.0
    drawn = random_feasible(masked(model.q_net(seen), seen))
    assert seen["mask"].gather(1, drawn.unsqueeze(1)).all()


@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_its_file_holds_every_setting_and_nothing_else(algorithm):
    values = read(algorithms.FOLDER / f"{algorithm}.yaml")
    fields = algorithms.ALGORITHMS[algorithm].settings.__struct_fields__
    assert {key for key in values if key not in WORDS} == set(fields)


def test_vmagents_file_and_names_are_understood(tmp_path):
    file = tmp_path / "dqn.yaml"
    file.write_text("mac: 'vectormac'\nlearner: 'q_learner'\nagent: 'DQNAgent'\n")  # as its README prints it
    assert algorithms.named(str(file)) == ("dqn", {})
    file.write_text("agent: QmixAgent\nlr: 0.005\nbatch_size: 1024\ntrain_n: 1\nnum_process: 5\nmax_epoch: 7\n")
    name, values = algorithms.named(str(file))
    found = algorithms.settings(name, (str(file), values))
    assert name == "qmix"
    assert (found.learning_rate, found.batch, found.updates, found.envs, found.segments) == (0.005, 1024, 1, 5, 7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent: DQNAgent\nlearner: sac_learner\n", "sac_learner"),
        ("agent: Nobody\n", "DQNAgent"),
        ("- 1\n", "keys and values"),
        ("agent: DQNAgent\nlearning_rat: 1\n", "learning_rat"),
        ("agent: DQNAgent\nbatch: many\n", "batch"),
        ("agent: DQNAgent\nbatch: 0\n", "batch"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path, text, said):
    file = tmp_path / "my.yaml"
    file.write_text(text)

    def taken():
        name, values = algorithms.named(str(file))
        return algorithms.settings(name, (str(file), values))

    with pytest.raises(ConfigError, match=said):
        taken()


def test_an_unknown_algorithm_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match="maskable_ppo"):
        algorithms.named("dqnn")
