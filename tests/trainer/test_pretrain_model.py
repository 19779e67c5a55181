"""The training forward is the inference forward: masks, experts, routing, and what may not leak."""

from __future__ import annotations

import pytest
import torch
from pretrain_tiny import LENGTH, packer_of, random_examples, small_config, tiny_model

from engine.models.experts import Experts, group_limited_choice, sum_by_sorting
from engine.models.layers import Heads, MaskAttend, block_causal_mask, rotary_tables
from trainer.moe_train import ALIGN, KINDS, choose_by_rank, grouped_layout
from trainer.noise import DevicePlan
from trainer.pretrain_model import ComputePath, TrainingModel, head_losses, select_positions
from trainer.staircase import DenseStaircase, FlexStaircase, block_codes, seen_blocks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> TrainingModel:
    return tiny_model(small_config())


def _plan(model: TrainingModel) -> tuple[DevicePlan, torch.Tensor]:
    examples = random_examples(20)
    plan = DevicePlan.of(packer_of(examples, small_config().window).next(), CPU)
    return plan, torch.from_numpy(examples.tokens)[plan.block].long()


def _hidden(model: TrainingModel, plan: DevicePlan, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states [blocks, L, H] of a training forward."""
    model.set_masks(plan)
    positions = plan.position.unsqueeze(1) * LENGTH + torch.arange(LENGTH)
    embeds = model.model.embed(ids.view(1, -1))
    return model.model(embeds, positions.view(1, -1), model.attend).view(*ids.shape, -1)


@torch.no_grad()
def test_a_noisy_block_computes_what_decoding_computes(model: TrainingModel) -> None:
    plan, clean = _plan(model)
    ids = torch.where(
        plan.noisy.unsqueeze(1) & (torch.rand(clean.shape) < 0.6), model.spec.mask_token_id, clean
    )
    hidden = _hidden(model, plan, ids)
    checked = 0
    for index in torch.nonzero(plan.noisy).flatten().tolist():
        same = (plan.segment == plan.segment[index]) & ~plan.noisy
        before = torch.nonzero(same & (plan.position < plan.position[index])).flatten()
        sequence = torch.cat((clean[before].flatten(), ids[index])).unsqueeze(0)
        positions = torch.arange(sequence.shape[1]).unsqueeze(0)
        attend = MaskAttend(block_causal_mask(positions, LENGTH))
        expected = model.model(model.model.embed(sequence), positions, attend)[0, -LENGTH:]
        torch.testing.assert_close(hidden[index], expected, atol=2e-4, rtol=1e-3)
        checked += 1
    assert checked > 10


@torch.no_grad()
def test_a_noisy_block_cannot_see_its_own_answer_or_other_copies(model: TrainingModel) -> None:
    plan, clean = _plan(model)
    ids = torch.where(plan.noisy.unsqueeze(1), model.spec.mask_token_id, clean)
    before = _hidden(model, plan, ids)
    index = int(torch.nonzero(plan.noisy)[0])
    hidden_from_it = (plan.segment == plan.segment[index]) & (
        plan.noisy | (plan.position >= plan.position[index])
    )
    hidden_from_it[index] = False
    changed = torch.where(hidden_from_it.unsqueeze(1), (ids + 7) % 250, ids)
    after = _hidden(model, plan, changed)
    torch.testing.assert_close(after[index], before[index], atol=1e-5, rtol=1e-5)
    seen = (plan.segment == plan.segment[index]) & ~plan.noisy
    seen &= plan.position < plan.position[index]
    if seen.any():
        third = _hidden(model, plan, torch.where(seen.unsqueeze(1), (ids + 7) % 250, ids))
        assert not torch.allclose(third[index], before[index], atol=1e-3)


def test_the_block_table_agrees_with_the_rule_block_by_block() -> None:
    plan, _ = _plan(tiny_model(small_config()))
    shape = (1, 32)
    codes = block_codes(plan.segment.view(shape), plan.position.view(shape), plan.noisy.view(shape))
    seen = seen_blocks(*codes)[0]
    for q in range(32):
        for k in range(32):
            earlier = (
                plan.segment[q] == plan.segment[k]
                and not plan.noisy[k]
                and plan.position[k] < plan.position[q]
            )
            assert bool(seen[q, k]) == (q == k or bool(earlier))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_block_mask_for_flex_attention_is_the_dense_mask() -> None:
    plan, _ = _plan(tiny_model(small_config()))
    shape = (1, 32)
    codes = block_codes(plan.segment.view(shape), plan.position.view(shape), plan.noisy.view(shape))
    flex = FlexStaircase(1, 32, LENGTH, CPU)
    dense = DenseStaircase(1, 32, LENGTH, CPU)
    flex.set(*codes)
    dense.set(*codes)
    rotary = rotary_tables(torch.arange(1024).unsqueeze(0), 16, 1e4, torch.float32)
    heads = Heads(torch.randn(1, 1024, 8 * 16), 2, 16, None, None, rotary)
    with torch.no_grad():
        torch.testing.assert_close(flex(0, heads), dense(0, heads), atol=1e-5, rtol=1e-5)
    tiles = flex.mask.kv_num_blocks + flex.mask.full_kv_num_blocks
    assert 1.0 <= float(tiles.float().mean()) < 8.0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_experts_and_their_gradients_are_the_engines(kind: str) -> None:
    torch.manual_seed(0)
    experts = Experts(8, 48, 32)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(70, 48, requires_grad=True)
    weights = torch.rand(70, 2, requires_grad=True)
    ids = group_limited_choice(torch.rand(70, 8), 4, 2, 2)
    ids[ids == 5] = 4  # an expert without tokens; a token may then name one twice
    ours = KINDS[kind](8)
    out, expected = ours(x, ids, weights, experts), sum_by_sorting(x, ids, weights, experts)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-4)
    into = (x, weights, *experts.parameters())
    direction = torch.randn_like(out)
    got = torch.autograd.grad(out, into, direction)
    wanted = torch.autograd.grad(expected, into, direction)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-3, rtol=1e-3)
    assert ours.load.tolist() == torch.bincount(ids.flatten(), minlength=8).tolist()


def test_grouped_rows_lie_in_aligned_groups_with_room_to_spare() -> None:
    ids = torch.randint(0, 6, (50, 3))
    counts = torch.bincount(ids.flatten(), minlength=7)  # expert 6 has none
    source, place, ends = grouped_layout(ids, counts)
    assert len(source) == 150 + 7 * ALIGN == int(ends[-1])
    assert (ends[:-1] % ALIGN == 0).all()
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), ends[:-1]))
    for token in range(50):
        for slot in range(3):
            row, expert = int(place[token, slot]), int(ids[token, slot])
            assert int(source[row]) == token * 3 + slot
            assert starts[expert] <= row < ends[expert]
    assert int((source < 150).sum()) == 150
    assert (ends - starts > counts).all()


@pytest.mark.parametrize(("experts", "groups", "kept", "top"), [(16, 4, 2, 4), (8, 4, 2, 2)])
def test_choosing_by_rank_is_the_engines_choice(
    experts: int, groups: int, kept: int, top: int
) -> None:
    scores = torch.rand(500, experts) - 0.2
    mine = choose_by_rank(scores, groups, kept, top)
    assert torch.equal(mine, group_limited_choice(scores, groups, kept, top))


def test_balancing_lowers_the_bias_of_busy_experts(model: TrainingModel) -> None:
    model.expert_bias.zero_()
    model.load.copy_(torch.tensor([9.0, 1, 1, 1, 1, 1, 1, 1]).expand_as(model.load))
    model.balance(0.01)
    assert (model.expert_bias[:, 0] < 0).all()
    assert (model.expert_bias[:, 1:] > 0).all()
    assert float(model.load_entropy().max()) < 1.0
    layer = model.decoder_layers[1].mlp
    assert torch.equal(layer.gate.expert_bias, model.expert_bias[0])  # pyright: ignore
    model.expert_bias.zero_()


def test_positions_are_selected_in_order_and_empty_slots_point_past_the_end() -> None:
    wanted = torch.tensor([False, True, True, False, True])
    assert select_positions(wanted, 4).tolist() == [1, 2, 4, 5]
    assert select_positions(wanted, 2).tolist() == [1, 2]


def test_the_head_loss_is_the_weighted_mean_cross_entropy() -> None:
    torch.manual_seed(1)
    hidden, head = torch.randn(6, 8), torch.randn(11, 8)
    targets, weight = torch.randint(11, (6,)), torch.tensor([1.0, 0.1, 0.0, 1.0, 0.3, 1.0])
    masked = torch.tensor([True, True, False, True, False, False])
    out = head_losses(hidden, head, targets, weight, masked)
    logs = torch.log_softmax(hidden @ head.t(), -1)[torch.arange(6), targets]
    assert float(out.loss) == pytest.approx(float(-(logs * weight).sum() / weight.sum()))
    right = (hidden @ head.t()).argmax(-1) == targets
    assert float(out.correct) == float((right & masked).sum())
    assert float(out.counted) == 3.0


def test_the_compute_path_is_chosen_by_what_there_is() -> None:
    assert ComputePath.of(CPU, compiled=False).attention == "dense"
    assert ComputePath.of(CPU, compiled=True).attention == "flex"
    assert ComputePath.of(CPU, compiled=True, attention="dense", experts="wide").experts == "wide"
