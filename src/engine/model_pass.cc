// Shapes: T tokens of the pass, R rows of logits, V vocabulary.
#include "engine/model_pass.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/base/rng.h"
#include "engine/open_request.h"
#include "model/decoder/token_batch.h"

namespace tdock::engine {
namespace {

// A sequence whose next token follows from a row of the logits.
struct Row {
  Sequence* sequence = nullptr;
  int64_t logits = 0;
  int64_t ahead = 0;  // see Chosen
  std::optional<int32_t> guess = {};
};

int64_t RopeLength(const Piece& piece) { return piece.sequence->request->rope_length; }

model::TokenBatch BatchOf(std::span<const Piece> pieces, const at::Device& device) {
  std::vector<int64_t> tokens, positions;
  for (const Piece& piece : pieces) {
    for (int64_t i = piece.sequence->cached; i < piece.sequence->cached + piece.count; ++i) {
      tokens.push_back(piece.sequence->tokens[static_cast<size_t>(i)]);
      positions.push_back(i);
    }
    for (const int32_t guess : piece.guesses) {
      tokens.push_back(guess);
      positions.push_back(positions.back() + 1);
    }
  }
  const auto row = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).unsqueeze(0).to(device);
  };
  return {.tokens = row(tokens), .positions = row(positions), .rope_length = RopeLength(pieces.front())};
}

// The sequences that get a token from this pass, and for each row of the logits its place in the pass.
std::vector<Row> RowsOf(std::span<const Piece> pieces, std::vector<int64_t>& places) {
  std::vector<Row> rows;
  int64_t end = 0;
  for (const Piece& piece : pieces) {
    const int64_t begin = std::exchange(end, end + piece.size());
    Sequence* const sequence = piece.sequence;
    if (!sequence->IsReadWith(piece.count) || !sequence->request->wants_tokens()) continue;
    const auto number = static_cast<int64_t>(places.size());
    const auto guesses = std::ssize(piece.guesses);
    for (int64_t ahead = 0; ahead <= guesses; ++ahead) {
      Row& row = rows.emplace_back(Row{.sequence = sequence, .logits = number + ahead, .ahead = ahead});
      if (ahead < guesses) row.guess = piece.guesses[static_cast<size_t>(ahead)];
      places.push_back(begin + piece.count - 1 + ahead);
    }
    if (sequence != sequence->request->leader() || !sequence->completion.tokens.empty()) continue;
    for (const auto& other : sequence->request->sequences) {
      const bool follows = other->state == Sequence::State::kFollows && other->completion.tokens.empty();
      if (follows) rows.push_back({.sequence = other.get(), .logits = number});
    }
  }
  return rows;
}

// Scores prompts' tokens; no more than EngineOptions::kMostRows rows of logits are in memory at a time.
std::vector<ScoredPrompt> ScorePrompts(const model::Decoder& decoder, const at::Tensor& hidden_TC,
                                       std::span<const Piece> pieces) {
  std::vector<ScoredPrompt> prompts;
  std::vector<int64_t> places, targets;
  std::vector<size_t> owners;  // of each target, its number among the prompts
  int64_t top = 0, begin = 0;  // of the piece in the pass
  for (const Piece& piece : pieces) {
    const Sequence& sequence = *piece.sequence;
    OpenRequest& request = *sequence.request;
    if (request.scores_prompt() && &sequence == request.leader()) {
      const auto length = static_cast<int64_t>(request.request.prompt.tokens.size());
      const int64_t end = std::min(sequence.cached + piece.count, length - 1);
      for (auto i = static_cast<int64_t>(request.scored.size()); i < end; ++i) {
        places.push_back(begin + i - sequence.cached);
        targets.push_back(sequence.tokens[static_cast<size_t>(i) + 1]);
        owners.push_back(prompts.size());
      }
      prompts.push_back({.request = &request});
      top = std::max(top, *request.request.prompt_log_probs);
    }
    begin += piece.size();
  }
  if (places.empty()) return prompts;
  const at::Tensor places_N = at::tensor(places, at::kLong).to(decoder.device());
  const at::Tensor targets_N = at::tensor(targets, at::kLong);
  for (size_t first = 0; first < places.size(); first += EngineOptions::kMostRows) {
    const auto row = static_cast<int64_t>(first);
    const int64_t rows = std::min(std::ssize(places) - row, EngineOptions::kMostRows);
    const at::Tensor logits_RV = decoder.Logits(hidden_TC.index_select(0, places_N.narrow(0, row, rows)));
    std::vector<ScoredToken> scored = ScoreTokens(logits_RV, targets_N.narrow(0, row, rows), top);
    for (size_t i = 0; i < scored.size(); ++i) {
      ScoredPrompt& prompt = prompts[owners[first + i]];
      const auto asked = static_cast<size_t>(*prompt.request->request.prompt_log_probs);
      if (scored[i].top.size() > asked) scored[i].top.resize(asked);
      prompt.tokens.push_back(std::move(scored[i]));
    }
  }
  return prompts;
}

// `rows` are of one Choosing.
void Choose(const at::Tensor& logits_RV, std::span<const Row> rows, std::vector<Chosen>& chosen) {
  std::vector<Sampler::Row> sampled;
  std::vector<int64_t> index;
  bool in_order = true;
  for (const Row& row : rows) {
    const Sequence& sequence = *row.sequence;
    sampled.push_back({UnitInterval(DeriveSeed(sequence.stream, static_cast<uint64_t>(sequence.size() + row.ahead))),
                       static_cast<int64_t>(sequence.completion.tokens.size()) + row.ahead, &sequence.counts,
                       sequence.constraint != nullptr ? sequence.constraint->Allowed() : std::span<const uint64_t>()});
    in_order = in_order && row.logits == static_cast<int64_t>(index.size());
    index.push_back(row.logits);
  }
  const bool all = in_order && static_cast<int64_t>(index.size()) == logits_RV.size(0);
  const Sampler& sampler = rows.front().sequence->request->choosing->sampler;
  Choices choices = sampler.Choose(
      all ? logits_RV : logits_RV.index_select(0, at::tensor(index, at::kLong).to(logits_RV.device())), sampled);
  for (size_t r = 0; r < rows.size(); ++r) {
    chosen.push_back({.sequence = rows[r].sequence,
                      .ahead = rows[r].ahead,
                      .guess = rows[r].guess,
                      .token = static_cast<int32_t>(choices.tokens[r]),
                      .log_prob = choices.log_probs[r]});
    if (!choices.top.empty()) chosen.back().top = std::move(choices.top[r]);
  }
}

}  // namespace

PassResult RunPass(const model::Decoder& decoder, model::KvCache& cache, std::span<const Piece> pieces) {
  const at::NoGradGuard no_grad;
  std::vector<model::CachedPart> parts;
  for (const Piece& piece : pieces) parts.push_back({piece.sequence->cache, piece.sequence->cached, piece.size()});
  const std::unique_ptr<model::CachePass> pass = cache.Begin(std::move(parts));
  const at::Tensor hidden = decoder.Hidden(BatchOf(pieces, decoder.device()), pass.get()).squeeze(0);
  std::vector<int64_t> places;
  const std::vector<Row> rows = RowsOf(pieces, places);
  PassResult result{.scored = ScorePrompts(decoder, hidden, pieces)};
  if (rows.empty()) return result;
  std::vector<Chosen>& chosen = result.chosen;
  const bool all = static_cast<int64_t>(places.size()) == hidden.size(0);
  const at::Tensor logits_RV =
      decoder.Logits(all ? hidden : hidden.index_select(0, at::tensor(places, at::kLong).to(decoder.device())));
  chosen.reserve(rows.size());
  // Rows with a constraint are by themselves, so that the others are computed as if there were none.
  const auto choosing = [&](size_t row) {
    const Sequence& sequence = *rows[row].sequence;
    return std::make_pair(sequence.request->choosing.get(), sequence.constraint != nullptr);
  };
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && end - begin < EngineOptions::kMostRows && choosing(end) == choosing(begin)) ++end;
    Choose(logits_RV, std::span(rows).subspan(begin, end - begin), chosen);
    begin = end;
  }
  return result;
}

std::vector<std::span<const Piece>> CutPasses(std::span<Piece> pieces, const model::Decoder& decoder) {
  if (pieces.empty()) return {};
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return RopeLength(a) < RopeLength(b); });
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.count;
  const auto count = static_cast<int64_t>(pieces.size());
  const bool is_cpu = decoder.device().is_cpu();
  const int64_t needed = is_cpu ? (count + EngineOptions::kMostRows - 1) / EngineOptions::kMostRows : 1;
  const int64_t passes = is_cpu && !decoder.batch_invariant() ? std::max<int64_t>(2, needed) : needed;
  const int64_t enough = (total + passes - 1) / passes;
  std::vector<std::span<const Piece>> cut;
  size_t begin = 0;
  int64_t tokens = 0;
  const auto close = [&](size_t end) {
    cut.push_back(pieces.subspan(begin, end - begin));
    begin = end;
    tokens = 0;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t more = pieces[i].count;
    const bool differs = i > begin && RopeLength(pieces[i]) != RopeLength(pieces[begin]);
    const bool full = is_cpu && std::cmp_equal(i - begin, EngineOptions::kMostRows);
    // A long piece goes where the passes come closer to equal.
    const bool is_long = i > begin && tokens + more - enough > enough - tokens;
    if (differs || full || is_long) close(i);
    tokens += more;
    if (tokens >= enough) close(i + 1);
  }
  if (begin < pieces.size()) close(pieces.size());
  return cut;
}

}  // namespace tdock::engine
