#include "trainer/stages/layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "model/tensor_torch/convert.h"
#include "tdock/padding.h"
#include "trainer/stages/log_probs.h"

namespace tdock::trainer {
namespace {

// Four numbers for each token of each row.
struct TokenRows {
  using Numbers = std::vector<std::vector<int64_t>>;
  Numbers tokens, positions;
  Numbers prompts;             // which prompt of the row it belongs to
  Numbers responses;           // 0: to the prompt itself; k: to its k-th response in this row
  std::vector<bool> branches;  // whether the row has more than one prompt, or a prompt with more than one response

  size_t count() const { return tokens.size(); }
  int64_t Length(size_t row) const { return static_cast<int64_t>(tokens[row].size()); }
  void Begin() {
    for (Numbers* numbers : {&tokens, &positions, &prompts, &responses}) numbers->emplace_back();
    branches.push_back(false);
  }
  void Add(size_t row, std::span<const int32_t> ids, int64_t position, int64_t prompt, int64_t response) {
    for (int32_t id : ids) {
      tokens[row].push_back(id);
      positions[row].push_back(position++);
      prompts[row].push_back(prompt);
      responses[row].push_back(response);
    }
  }
};

// A place in a row that predicts a response token, or is its own. Where rows begin is known only when all are.
struct Place {
  int64_t row, column;
};

int64_t Size(std::span<const int32_t> tokens) { return static_cast<int64_t>(tokens.size()); }

absl::string_view PromptBytes(const Sequence& sample) {
  return {reinterpret_cast<const char*>(sample.prompt.data()), sample.prompt.size_bytes()};
}

// Fills rows with samples, one after another.
class RowPacker {
 public:
  RowPacker(int64_t max_row_tokens, int64_t max_shared_row_tokens, bool at_tokens)
      : max_row_tokens_(max_row_tokens),
        max_shared_row_tokens_(std::max(max_row_tokens, max_shared_row_tokens)),
        at_tokens_(at_tokens) {}

  void Add(const Sequence& sample) {
    const std::span<const int32_t> fed = sample.response.first(sample.response.size() - (at_tokens_ ? 0 : 1));
    const auto [entry, is_new] = open_prompts_.try_emplace(PromptBytes(sample));
    OpenPrompt& open = entry->second;
    if (is_new || rows_.Length(open.row) + Size(fed) > max_shared_row_tokens_) {
      const int64_t needed = Size(sample.prompt) + Size(fed);
      if (rows_.count() == 0 || rows_.Length(rows_.count() - 1) + needed > max_row_tokens_) rows_.Begin();
      const size_t row = rows_.count() - 1;
      if (rows_.Length(row) > 0) rows_.branches[row] = true;
      open = {.row = row, .prompt = prompts_++, .last_column = rows_.Length(row) + Size(sample.prompt) - 1};
      rows_.Add(row, sample.prompt, 0, open.prompt, 0);
    } else {
      rows_.branches[open.row] = true;
    }
    const auto row = static_cast<int64_t>(open.row);
    if (!at_tokens_) places_.push_back({row, open.last_column});
    for (int64_t i = 0; i < Size(fed); ++i) places_.push_back({row, rows_.Length(open.row) + i});
    rows_.Add(open.row, fed, Size(sample.prompt), open.prompt, ++open.responses);
  }

  const TokenRows& rows() const { return rows_; }
  const std::vector<Place>& places() const { return places_; }

 private:
  struct OpenPrompt {
    size_t row = 0;
    int64_t prompt = 0;       // its number
    int64_t last_column = 0;  // of its last token
    int64_t responses = 0;    // so far
  };

  const int64_t max_row_tokens_, max_shared_row_tokens_;
  const bool at_tokens_;  // whether places are those of the tokens themselves
  absl::flat_hash_map<absl::string_view, OpenPrompt> open_prompts_;  // by their tokens
  int64_t prompts_ = 0;
  TokenRows rows_;
  std::vector<Place> places_;  // of each response token
};

at::Tensor Padded(const TokenRows::Numbers& rows, int64_t padding) {
  const absl::StatusOr<Column> padded = PadRows(Column::FromRows(rows), {.pad_id = padding});
  TORCH_CHECK(padded.ok(), padded.status().message());
  return ValuesOf(*padded).value();
}

at::Tensor Concatenated(const TokenRows::Numbers& rows) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& row : rows) all.insert(all.end(), row.begin(), row.end());
  return at::tensor(all, at::kLong).unsqueeze(0);
}

// Whether padding would be more than an eighth of the rows.
bool VaryInLength(const TokenRows& rows) {
  int64_t longest = 0, total = 0;
  for (size_t row = 0; row < rows.count(); ++row) {
    longest = std::max(longest, rows.Length(row));
    total += rows.Length(row);
  }
  return 8 * (longest * static_cast<int64_t>(rows.count()) - total) > total;
}

// A row of one sample needs no mask: each token sees all before it, and padding is behind them.
model::TokenBatch PaddedRows(const TokenRows& rows, const at::Device& device) {
  model::TokenBatch batch{Padded(rows.tokens, 0).to(device), Padded(rows.positions, 0).to(device)};
  if (std::find(rows.branches.begin(), rows.branches.end(), true) == rows.branches.end()) return batch;
  // Padding is a prompt of its own: nobody else sees it, and it sees itself, because a softmax over nothing is not a
  // number.
  batch.visible = model::VisibleWithin(Padded(rows.prompts, -1), Padded(rows.responses, 0)).to(device);
  return batch;
}

model::TokenBatch ConcatenatedRows(const TokenRows& rows, const at::Device& device) {
  model::TokenBatch batch{Concatenated(rows.tokens).to(device), Concatenated(rows.positions).to(device)};
  for (size_t row = 0; row < rows.count(); ++row) {
    batch.lengths.push_back(rows.Length(row));
    const auto numbers = [&](const TokenRows::Numbers& all) { return at::tensor(all[row], at::kLong).unsqueeze(0); };
    batch.visible_in_parts.push_back(
        rows.branches[row] ? model::VisibleWithin(numbers(rows.prompts), numbers(rows.responses)).to(device)
                           : at::Tensor());
  }
  return batch;
}

}  // namespace

Layout MakeLayout(std::span<const Sequence> samples, int64_t max_row_tokens, const at::Device& device, Scored scored,
                  int64_t max_shared_row_tokens) {
  RowPacker packer(max_row_tokens, max_shared_row_tokens, scored == Scored::kValuesAt);
  std::vector<int64_t> targets;
  for (size_t s = 0; s < samples.size(); ++s) {
    TORCH_CHECK(!samples[s].prompt.empty() && !samples[s].response.empty(), "sample ", s,
                " has an empty prompt or response");
    packer.Add(samples[s]);
    targets.insert(targets.end(), samples[s].response.begin(), samples[s].response.end());
  }
  const TokenRows& rows = packer.rows();
  const bool concatenated = VaryInLength(rows);
  Layout layout{.batch = concatenated ? ConcatenatedRows(rows, device) : PaddedRows(rows, device),
                .places = {},
                .targets = at::tensor(targets, at::kLong).to(device)};
  std::vector<int64_t> begins = {0};  // of the rows, among all tokens
  for (size_t row = 0; row < rows.count(); ++row) {
    begins.push_back(begins.back() + (concatenated ? rows.Length(row) : layout.batch.tokens.size(1)));
  }
  std::vector<int64_t> places;
  for (const Place& place : packer.places()) {
    places.push_back(begins[static_cast<size_t>(place.row)] + place.column);
  }
  layout.places = at::tensor(places, at::kLong).to(device);
  return layout;
}

ResponseFigures ScoreResponses(const model::Decoder& decoder, const Layout& layout, double temperature,
                               Entropy entropy) {
  const at::Tensor hidden_NC = decoder.Hidden(layout.batch).flatten(0, 1).index_select(0, layout.places);
  return ScoreTokens(decoder.ComputedLogits(hidden_NC), layout.targets, temperature, entropy);
}

at::Tensor ScoreValues(const model::Decoder& decoder, const Layout& layout) {
  return decoder.Values(decoder.Hidden(layout.batch).flatten(0, 1).index_select(0, layout.places));
}

}  // namespace tdock::trainer
