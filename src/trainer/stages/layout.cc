#include "trainer/stages/layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tdock::train {
namespace {

// Four numbers for each token of a row.
struct Row {
  std::vector<int64_t> tokens, positions;
  std::vector<int64_t> prompts;    // which prompt of the row it belongs to
  std::vector<int64_t> responses;  // 0: to the prompt itself; k: to its k-th response in this row

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void Add(std::span<const int32_t> ids, int64_t position, int64_t prompt, int64_t response) {
    for (int32_t id : ids) {
      tokens.push_back(id);
      positions.push_back(position++);
      prompts.push_back(prompt);
      responses.push_back(response);
    }
  }
};

// A place in a row that predicts a response token. Rows get their width only when all are known.
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
  explicit RowPacker(int64_t max_row_tokens) : max_row_tokens_(max_row_tokens) {}

  void Add(const Sequence& sample) {
    const std::span<const int32_t> fed = sample.response.first(sample.response.size() - 1);
    const auto [entry, is_new] = open_prompts_.try_emplace(PromptBytes(sample));
    OpenPrompt& open = entry->second;
    if (is_new || rows_[open.row].size() + Size(fed) > max_row_tokens_) {
      if (rows_.empty() || rows_.back().size() + Size(sample.prompt) + Size(fed) > max_row_tokens_)
        rows_.emplace_back();
      Row& row = rows_.back();
      open = {.row = rows_.size() - 1, .prompt = prompts_++, .last_column = row.size() + Size(sample.prompt) - 1};
      row.Add(sample.prompt, 0, open.prompt, 0);
    }
    Row& row = rows_[open.row];
    places_.push_back({static_cast<int64_t>(open.row), open.last_column});
    for (int64_t i = 0; i < Size(fed); ++i) places_.push_back({static_cast<int64_t>(open.row), row.size() + i});
    row.Add(fed, Size(sample.prompt), open.prompt, ++open.responses);
    width_ = std::max(width_, row.size());
  }

  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Place>& places() const { return places_; }
  int64_t width() const { return width_; }

 private:
  struct OpenPrompt {
    size_t row = 0;
    int64_t prompt = 0;       // its number
    int64_t last_column = 0;  // of its last token
    int64_t responses = 0;    // so far
  };

  const int64_t max_row_tokens_;
  absl::flat_hash_map<absl::string_view, OpenPrompt> open_prompts_;  // by their tokens
  int64_t prompts_ = 0;
  std::vector<Row> rows_;
  std::vector<Place> places_;  // of each response token
  int64_t width_ = 0;
};

at::Tensor Padded(const std::vector<Row>& rows, std::vector<int64_t> Row::*field, int64_t width, int64_t padding) {
  at::Tensor result = at::full({static_cast<int64_t>(rows.size()), width}, padding, at::kLong);
  int64_t* data = result.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    std::copy((row.*field).begin(), (row.*field).end(), data);
    data += width;
  }
  return result;
}

// Padding is a prompt of its own: nobody else sees it, and it sees itself, because a softmax over nothing is not a
// number.
at::Tensor Visible(const std::vector<Row>& rows, int64_t width) {
  const at::Tensor prompts_BT = Padded(rows, &Row::prompts, width, -1);
  const at::Tensor responses_BT = Padded(rows, &Row::responses, width, 0);
  const at::Tensor same_prompt = prompts_BT.unsqueeze(2) == prompts_BT.unsqueeze(1);
  const at::Tensor seen = responses_BT.unsqueeze(1);
  const at::Tensor in_history = (seen == 0) | (seen == responses_BT.unsqueeze(2));
  const at::Tensor not_later = at::ones({width, width}, at::kBool).tril();
  return (same_prompt & in_history & not_later).unsqueeze(1);
}

}  // namespace

Layout MakeLayout(std::span<const Sequence> samples, int64_t max_row_tokens, const at::Device& device) {
  RowPacker packer(max_row_tokens);
  std::vector<int64_t> targets;
  for (size_t s = 0; s < samples.size(); ++s) {
    TORCH_CHECK(!samples[s].prompt.empty() && !samples[s].response.empty(), "sample ", s,
                " has an empty prompt or response");
    packer.Add(samples[s]);
    targets.insert(targets.end(), samples[s].response.begin(), samples[s].response.end());
  }
  const std::vector<Row>& rows = packer.rows();
  const int64_t width = packer.width();
  std::vector<int64_t> predictors;
  for (const Place& place : packer.places()) predictors.push_back(place.row * width + place.column);
  return {{Padded(rows, &Row::tokens, width, 0).to(device), Padded(rows, &Row::positions, width, 0).to(device),
           Visible(rows, width).to(device)},
          at::tensor(predictors, at::kLong).to(device),
          at::tensor(targets, at::kLong).to(device)};
}

at::Tensor ResponseLogProbs(const model::Decoder& decoder, const Layout& layout, double temperature,
                            at::Tensor* entropy) {
  const at::Tensor hidden_NC = decoder.Hidden(layout.batch).flatten(0, 1).index_select(0, layout.predictors);
  const at::Tensor log_probs_NV = at::log_softmax(decoder.Logits(hidden_NC) / temperature, -1);
  if (entropy != nullptr) {
    const at::Tensor detached = log_probs_NV.detach();
    *entropy = -(detached.exp() * detached).sum(-1);
  }
  return log_probs_NV.gather(1, layout.targets.unsqueeze(1)).squeeze(1);
}

}  // namespace tdock::train
