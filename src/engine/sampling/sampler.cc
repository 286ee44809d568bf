#include "engine/sampling/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/sampling/filters.h"
#include "kernels/log_probs.h"

namespace tdock::engine {
namespace {

constexpr float kNoChance = -std::numeric_limits<float>::infinity();

at::Tensor OnHost(const at::Tensor& values) { return values.to(at::kCPU).contiguous(); }

// The `count` most likely tokens of each row in falling order, of equal ones the lower id first; fewer where fewer have
// a probability.
std::vector<std::vector<TokenLogProb>> LikeliestTokens(const at::Tensor& log_probs_RV, int64_t count) {
  const Ranked ranked = RankTokens(log_probs_RV, count);
  const at::Tensor tokens_RK = OnHost(ranked.tokens_RK);
  const at::Tensor scores_RK = OnHost(ranked.scores_RK.to(at::kFloat));
  const int64_t found = tokens_RK.size(1);
  std::vector<std::vector<TokenLogProb>> rows(static_cast<size_t>(tokens_RK.size(0)));
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t begin = static_cast<int64_t>(r) * found;
    for (int64_t i = begin; i < begin + found; ++i) {
      const float log_prob = scores_RK.const_data_ptr<float>()[i];
      if (log_prob == kNoChance) break;
      rows[r].push_back({static_cast<int32_t>(tokens_RK.const_data_ptr<int64_t>()[i]), log_prob});
    }
  }
  return rows;
}

std::vector<double> Uniforms(std::span<const Sampler::Row> rows) {
  std::vector<double> uniforms;
  uniforms.reserve(rows.size());
  for (const Sampler::Row& row : rows) uniforms.push_back(row.uniform);
  return uniforms;
}

at::Tensor LogSoftmax(const at::Tensor& scores_RV, double temperature) {
  if (kernels::TakesLogits(scores_RV)) return kernels::LogSoftmax(scores_RV, temperature);
  return at::log_softmax(temperature == 1 ? scores_RV : scores_RV / temperature, -1);
}

at::Tensor Chosen(const at::Tensor& values_RV, const at::Tensor& tokens_R) {
  return values_RV.gather(1, tokens_R.unsqueeze(1)).squeeze(1).to(at::kFloat);
}

at::Tensor BiasOf(const SamplingParams& params, int64_t vocab_size) {
  at::Tensor bias = at::full({vocab_size}, params.allowed_tokens.empty() ? 0.0F : kNoChance, at::kFloat);
  float* values = bias.mutable_data_ptr<float>();
  for (const int32_t token : params.allowed_tokens) values[token] = 0;
  for (const auto& [token, added] : params.logit_bias) values[token] += static_cast<float>(added);
  return bias;
}

bool IsConstrained(const Sampler::Row& row) { return !row.allowed.empty(); }

at::Tensor OnlyAllowed(const at::Tensor& scores_RV, std::span<const Sampler::Row> rows) {
  const int64_t vocabulary = scores_RV.size(1);
  at::Tensor is_out_RV = at::zeros({scores_RV.size(0), vocabulary}, at::kBool);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!IsConstrained(rows[r])) continue;
    bool* const is_out = is_out_RV.mutable_data_ptr<bool>() + static_cast<int64_t>(r) * vocabulary;
    for (int64_t begin = 0; begin < vocabulary; begin += 64) {
      const auto word = static_cast<size_t>(begin) / 64;
      const uint64_t bits = word < rows[r].allowed.size() ? rows[r].allowed[word] : 0;
      const int64_t end = std::min<int64_t>(begin + 64, vocabulary);
      if (bits == 0) std::fill(is_out + begin, is_out + end, true);
      if (bits == 0 || ~bits == 0) continue;
      for (int64_t token = begin; token < end; ++token) is_out[token] = (bits >> (token - begin) & 1) == 0;
    }
  }
  return scores_RV.masked_fill(is_out_RV.to(scores_RV.device()), kNoChance);
}

std::vector<ScoredToken> ScoreByKernels(const at::Tensor& logits_RV, const at::Tensor& tokens_R, int64_t top) {
  std::vector<ScoredToken> scored;
  for (const kernels::RankedTarget& ranked : kernels::RankTargets(logits_RV, tokens_R, top)) {
    ScoredToken& token = scored.emplace_back(ScoredToken{.log_prob = ranked.log_prob, .rank = ranked.rank});
    for (const auto& [id, log_prob] : ranked.likeliest) token.top.push_back({static_cast<int32_t>(id), log_prob});
  }
  return scored;
}

std::vector<ScoredToken> ScoreByLibtorch(const at::Tensor& logits_RV, const at::Tensor& tokens_R, int64_t top) {
  const at::Tensor log_probs_RV = at::log_softmax(logits_RV, -1);
  const at::Tensor tokens_R1 = tokens_R.to(logits_RV.device()).unsqueeze(1);
  const at::Tensor own_R1 = log_probs_RV.gather(1, tokens_R1);
  const at::Tensor is_lower_RV = at::arange(logits_RV.size(1), tokens_R1.options()) < tokens_R1;
  const at::Tensor is_before_RV = (log_probs_RV > own_R1) | ((log_probs_RV == own_R1) & is_lower_RV);
  const at::Tensor ranks_R = OnHost(is_before_RV.sum(1) + 1);
  const at::Tensor own_R = OnHost(own_R1.squeeze(1).to(at::kFloat));
  std::vector<std::vector<TokenLogProb>> likeliest(static_cast<size_t>(logits_RV.size(0)));
  if (top > 0) likeliest = LikeliestTokens(log_probs_RV, top);
  std::vector<ScoredToken> scored;
  for (size_t r = 0; r < likeliest.size(); ++r) {
    scored.push_back({.log_prob = own_R.const_data_ptr<float>()[r],
                      .rank = ranks_R.const_data_ptr<int64_t>()[r],
                      .top = std::move(likeliest[r])});
  }
  return scored;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> end_tokens, int64_t vocab_size,
                 const at::Device& device)
    : params_(params),
      greedy_(params.temperature == 0),
      biases_(!params.logit_bias.empty() || !params.allowed_tokens.empty()),
      penalises_(params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0),
      keeps_(!greedy_ && ((params.top_k > 0 && params.top_k < vocab_size) || params.top_p < 1 || params.min_p > 0)) {
  if (biases_) bias_V_ = BiasOf(params, vocab_size).to(device);
  if (params.min_new_tokens == 0) return;
  at::Tensor is_end = at::zeros({vocab_size}, at::kBool);
  for (const int32_t token : end_tokens) {
    if (token >= 0 && token < vocab_size) is_end.mutable_data_ptr<bool>()[token] = true;
  }
  for (const int32_t token : params.stop_tokens) is_end.mutable_data_ptr<bool>()[token] = true;
  is_end_V_ = is_end.to(device);
}

at::Tensor Sampler::WithoutEnds(const at::Tensor& scores_RV, std::span<const Row> rows) const {
  at::Tensor is_short = at::empty({static_cast<int64_t>(rows.size()), 1}, at::kBool);
  for (size_t r = 0; r < rows.size(); ++r) {
    is_short.mutable_data_ptr<bool>()[r] = rows[r].answer_length < params_.min_new_tokens;
  }
  if (!is_short.any().item<bool>()) return scores_RV;
  return scores_RV.masked_fill(is_short.to(scores_RV.device()) & is_end_V_, kNoChance);
}

bool Sampler::Filters(std::span<const Row> rows) const {
  return changes_logits() || keeps_ || std::any_of(rows.begin(), rows.end(), IsConstrained);
}

at::Tensor Sampler::FilteredScores(const at::Tensor& logits_RV, std::span<const Row> rows) const {
  at::Tensor scores_RV = biases_ ? logits_RV + bias_V_ : logits_RV;
  if (std::any_of(rows.begin(), rows.end(), IsConstrained)) scores_RV = OnlyAllowed(scores_RV, rows);
  if (penalises_) {
    std::vector<const TokenCounts*> counts;
    for (const Row& row : rows) counts.push_back(row.counts);
    scores_RV = Penalise(scores_RV, counts, params_);
  }
  if (params_.min_new_tokens > 0) scores_RV = WithoutEnds(scores_RV, rows);
  if (!greedy_) scores_RV = scores_RV / params_.temperature;
  return keeps_ ? KeepLikely(scores_RV, params_) : scores_RV;
}

at::Tensor Sampler::FilteredLogProbs(const at::Tensor& logits_RV, std::span<const Row> rows) const {
  return Filters(rows) ? LogSoftmax(FilteredScores(logits_RV, rows), 1.0) : LogSoftmax(logits_RV, policy_temperature());
}

Choices Sampler::Choose(const at::Tensor& logits_RV, std::span<const Row> rows) const {
  return kernels::TakesLogits(logits_RV) ? ChooseByKernels(logits_RV, rows) : ChooseByLibtorch(logits_RV, rows);
}

Choices Sampler::ChooseByKernels(const at::Tensor& logits_RV, std::span<const Row> rows) const {
  const at::Tensor scores_RV = Filters(rows) ? FilteredScores(logits_RV, rows) : logits_RV;
  const double temperature = Filters(rows) ? 1.0 : policy_temperature();
  kernels::ChosenTokens chosen =
      greedy_ ? kernels::LikeliestTokens(scores_RV) : kernels::SampleTokens(scores_RV, temperature, Uniforms(rows));
  Choices choices{.tokens = std::move(chosen.tokens), .log_probs = std::move(chosen.log_probs), .top = {}};
  if (RecordsPolicy(rows)) {
    const at::Tensor recorded_R =
        kernels::TokenLogProbs(logits_RV, at::tensor(choices.tokens, at::kLong), policy_temperature()).log_probs;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (std::isfinite(choices.log_probs[r])) choices.log_probs[r] = recorded_R.const_data_ptr<float>()[r];
    }
  }
  if (params_.top_log_probs > 0) {
    const at::Tensor recorded_RV =
        RecordsPolicy(rows) ? LogSoftmax(logits_RV, policy_temperature()) : LogSoftmax(scores_RV, temperature);
    choices.top = LikeliestTokens(recorded_RV, params_.top_log_probs);
  }
  return choices;
}

Choices Sampler::ChooseByLibtorch(const at::Tensor& logits_RV, std::span<const Row> rows) const {
  const at::Tensor filtered_RV = FilteredLogProbs(logits_RV, rows);
  const at::Tensor tokens_R =
      greedy_ ? filtered_RV.argmax(-1)
              : SampleFromUniform(filtered_RV, at::tensor(Uniforms(rows), at::kDouble).to(logits_RV.device()));
  const at::Tensor recorded_RV = RecordsPolicy(rows) ? LogSoftmax(logits_RV, policy_temperature()) : filtered_RV;
  at::Tensor log_probs_R = Chosen(recorded_RV, tokens_R);
  if (RecordsPolicy(rows)) {
    const at::Tensor sampled_R = Chosen(filtered_RV, tokens_R);
    log_probs_R = at::where(sampled_R.isfinite(), log_probs_R, sampled_R);
  }
  const at::Tensor host_tokens = tokens_R.to(at::kCPU);
  const at::Tensor host_log_probs = log_probs_R.to(at::kCPU);
  const auto* tokens = host_tokens.const_data_ptr<int64_t>();
  const auto* log_probs = host_log_probs.const_data_ptr<float>();
  Choices choices{
      .tokens = {tokens, tokens + rows.size()}, .log_probs = {log_probs, log_probs + rows.size()}, .top = {}};
  if (params_.top_log_probs > 0) choices.top = LikeliestTokens(recorded_RV, params_.top_log_probs);
  return choices;
}

std::vector<ScoredToken> ScoreTokens(const at::Tensor& logits_RV, const at::Tensor& tokens_R, int64_t top) {
  return kernels::TakesLogits(logits_RV) ? ScoreByKernels(logits_RV, tokens_R, top)
                                         : ScoreByLibtorch(logits_RV, tokens_R, top);
}

}  // namespace tdock::engine
