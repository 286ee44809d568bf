// N: pairs of a row and a token that it has.
#include "engine/sampling/filters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tdock::engine {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

at::Tensor Doubles(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, at::kDouble).to(like.options());
}

// The `most` highest scores, but without those that top_p leaves out anyway, as far as they are not ranked: few tokens
// have most of the probability, and are found faster than all are sorted. Others that it leaves out are at -infinity.
Ranked RankNucleus(const at::Tensor& scores_RV, int64_t most, double top_p) {
  const bool of_all = most == scores_RV.size(1);  // then shares are known before tokens are ranked
  const at::Tensor shares_RV =
      of_all ? at::where(scores_RV.isnan(), kNever, scores_RV).to(at::kDouble).softmax(-1) : at::Tensor();
  // Elsewhere than on the CPU the host would wait for the device to see whether they are enough.
  for (int64_t count = of_all && scores_RV.is_cpu() ? std::min<int64_t>(most, 256) : most;;
       count = std::min(most, count * 8)) {
    Ranked ranked = RankTokens(scores_RV, count);
    const at::Tensor shares_RK =
        of_all ? shares_RV.gather(1, ranked.tokens_RK) : ranked.scores_RK.to(at::kDouble).softmax(-1);
    const at::Tensor sums_RK = shares_RK.cumsum(-1);
    if (count < most && !(sums_RK.select(1, count - 1) >= top_p).all().item<bool>()) continue;
    // A token stays if those before it have less together.
    at::Tensor out_RK = at::zeros_like(sums_RK, at::kBool);
    out_RK.narrow(1, 1, count - 1).copy_(sums_RK.narrow(1, 0, count - 1) >= top_p);
    ranked.scores_RK = ranked.scores_RK.masked_fill(out_RK, kNever);
    return ranked;
  }
}

}  // namespace

Ranked RankTokens(const at::Tensor& scores_RV, int64_t count) {
  const at::Tensor known_RV = at::where(scores_RV.isnan(), kNever, scores_RV);
  const int64_t rows = known_RV.size(0);
  if (count >= known_RV.size(1)) {
    auto [scores, tokens] = known_RV.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
    return {scores, tokens};
  }
  // topk() does not say which of equal scores it takes, so it only gives the lowest score.
  const at::Tensor border_R1 = std::get<0>(known_RV.topk(count, 1)).narrow(1, count - 1, 1);
  const at::Tensor above_RV = known_RV > border_R1;
  const at::Tensor equal_RV = known_RV == border_R1;
  const at::Tensor room_R1 = count - above_RV.sum(1, /*keepdim=*/true);
  const at::Tensor kept_RV = above_RV | (equal_RV & (equal_RV.cumsum(1, at::kInt) <= room_R1));
  const at::Tensor tokens_RK = kept_RV.nonzero().select(1, 1).view({rows, count});
  const auto [scores, order] = known_RV.gather(1, tokens_RK).sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  return {scores, tokens_RK.gather(1, order)};
}

at::Tensor KeepLikely(const at::Tensor& scores_RV, const SamplingParams& params) {
  at::Tensor kept_RV = scores_RV;
  const bool has_top_k = params.top_k > 0 && params.top_k < scores_RV.size(1);
  if (has_top_k || params.top_p < 1) {
    const int64_t most = has_top_k ? params.top_k : scores_RV.size(1);
    auto [scores_RK, tokens_RK] =
        params.top_p < 1 ? RankNucleus(kept_RV, most, params.top_p) : RankTokens(kept_RV, most);
    kept_RV = at::full_like(kept_RV, kNever).scatter(1, tokens_RK, scores_RK);
    kept_RV = at::where(scores_RV.isnan(), scores_RV, kept_RV);  // so that whoever samples sees it
  }
  if (params.min_p > 0) {
    const at::Tensor border_R1 = kept_RV.amax(1, /*keepdim=*/true).to(at::kDouble) + std::log(params.min_p);
    kept_RV = kept_RV.masked_fill(kept_RV < border_R1, kNever);
  }
  return kept_RV;
}

at::Tensor Penalise(const at::Tensor& scores_RV, std::span<const TokenCounts* const> counts,
                    const SamplingParams& params) {
  const int64_t vocab = scores_RV.size(1);
  std::vector<int64_t> places;
  std::vector<double> lowered;
  for (size_t r = 0; r < counts.size(); ++r) {
    for (const auto& [token, in_answer] : counts[r]->in_answer()) {
      const bool unchanged = in_answer == 0 && params.repetition_penalty == 1;
      if (token >= vocab || unchanged) continue;  // a prompt may have tokens that are never sampled
      places.push_back(static_cast<int64_t>(r) * vocab + token);
      lowered.push_back(params.frequency_penalty * static_cast<double>(in_answer) +
                        (in_answer > 0 ? params.presence_penalty : 0.0));
    }
  }
  if (places.empty()) return scores_RV;
  const at::Tensor places_N = at::tensor(places, at::kLong).to(scores_RV.device());
  const at::Tensor flat = scores_RV.reshape(-1);
  at::Tensor scores_N = flat.index_select(0, places_N);
  scores_N = at::where(scores_N < 0, scores_N * params.repetition_penalty, scores_N / params.repetition_penalty);
  scores_N = scores_N - Doubles(lowered, scores_N);
  return flat.index_copy(0, places_N, scores_N).view_as(scores_RV);
}

at::Tensor SampleFromUniform(const at::Tensor& log_probs_RV, const at::Tensor& uniform_R) {
  const at::Tensor sums_RV = log_probs_RV.to(at::kDouble).exp().cumsum(-1);
  const at::Tensor target_R1 = uniform_R.unsqueeze(1) * sums_RV.narrow(1, sums_RV.size(1) - 1, 1);
  return (sums_RV <= target_R1).sum(-1).clamp_max(sums_RV.size(1) - 1);
}

}  // namespace tdock::engine
