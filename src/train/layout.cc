#include "train/layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tdock::train {
namespace {

struct Row {
  std::vector<int64_t> tokens, positions;
  std::vector<int64_t> segments;  // 0: the prompt; k: the k-th response
  int64_t responses = 0;
};

absl::string_view PromptBytes(const Sequence& sample) {
  return {reinterpret_cast<const char*>(sample.prompt.data()), sample.prompt.size_bytes()};
}

int64_t Size(std::span<const int32_t> tokens) { return static_cast<int64_t>(tokens.size()); }

// A place in a row that predicts a response token. Rows get their width only when all are known.
struct Place {
  int64_t row, column;
};

Row StartRow(const Sequence& sample) {
  Row row;
  for (int64_t i = 0; i < Size(sample.prompt); ++i) {
    row.tokens.push_back(sample.prompt[static_cast<size_t>(i)]);
    row.positions.push_back(i);
    row.segments.push_back(0);
  }
  return row;
}

at::Tensor Padded(const std::vector<Row>& rows, std::vector<int64_t> Row::*field, int64_t width, int64_t padding) {
  at::Tensor result = at::full({static_cast<int64_t>(rows.size()), width}, padding, at::kLong);
  int64_t* data = result.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    std::copy((row.*field).begin(), (row.*field).end(), data);
    data += width;
  }
  return result;
}

// A token sees what comes before it in its row and belongs to the prompt or to its own response. Padding is a segment
// of its own behind everything: nobody sees it, and it sees itself, because a softmax over nothing is not a number.
at::Tensor Visible(const at::Tensor& segments_BT) {
  const at::Tensor seer = segments_BT.unsqueeze(2);
  const at::Tensor seen = segments_BT.unsqueeze(1);
  const at::Tensor earlier = at::ones({segments_BT.size(1), segments_BT.size(1)}, at::kBool).tril();
  return (((seen == 0) | (seen == seer)) & earlier).unsqueeze(1);
}

// Fills rows with samples, one after another.
class RowPacker {
 public:
  explicit RowPacker(int64_t max_row_tokens) : max_row_tokens_(max_row_tokens) {}

  void Add(const Sequence& sample) {
    const int64_t fed = Size(sample.response) - 1;
    const auto [open, is_new] = open_rows_.try_emplace(PromptBytes(sample), rows_.size());
    if (is_new || static_cast<int64_t>(rows_[open->second].tokens.size()) + fed > max_row_tokens_) {
      open->second = rows_.size();
      rows_.push_back(StartRow(sample));
    }
    const auto row_index = static_cast<int64_t>(open->second);
    Row& row = rows_[open->second];
    ++row.responses;
    places_.push_back({row_index, Size(sample.prompt) - 1});
    for (int64_t i = 0; i < fed; ++i) {
      places_.push_back({row_index, static_cast<int64_t>(row.tokens.size())});
      row.tokens.push_back(sample.response[static_cast<size_t>(i)]);
      row.positions.push_back(Size(sample.prompt) + i);
      row.segments.push_back(row.responses);
    }
    width_ = std::max(width_, static_cast<int64_t>(row.tokens.size()));
  }

  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Place>& places() const { return places_; }
  int64_t width() const { return width_; }

 private:
  const int64_t max_row_tokens_;
  absl::flat_hash_map<absl::string_view, size_t> open_rows_;  // by prompt
  std::vector<Row> rows_;
  std::vector<Place> places_;  // of each response token
  int64_t width_ = 0;
};

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
  const int64_t padding_segment = -1;
  return {{Padded(rows, &Row::tokens, width, 0).to(device), Padded(rows, &Row::positions, width, 0).to(device),
           Visible(Padded(rows, &Row::segments, width, padding_segment)).to(device)},
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
