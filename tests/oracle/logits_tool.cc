// For the oracle tests: the logits that a model gives to rows of tokens.
//
// usage: tdock_logits MODEL full|cached < rows.json > logits
//
// Standard input is {"rows": [[token, …], …], "prefill": [length, …]}. Standard output is float32, a row of logits for
// each token, row by row. `full` runs all rows in one right-padded pass. `cached` reads the first `prefill` tokens of
// each row in one right-padded pass over a cache, and then all rows together one token at a time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "base/env.h"
#include "model/checkpoint.h"
#include "nlohmann/json.hpp"

namespace tdock {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

int64_t Length(const std::vector<int64_t>& row) { return static_cast<int64_t>(row.size()); }

// The first lengths[b] tokens of each row b, and zeros behind them.
model::TokenBatch RightPadded(const Rows& rows, const std::vector<int64_t>& lengths) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t width = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor tokens = at::zeros({count, width}, at::kLong);
  for (size_t b = 0; b < rows.size(); ++b) {
    std::copy_n(rows[b].begin(), lengths[b], tokens.mutable_data_ptr<int64_t>() + static_cast<int64_t>(b) * width);
  }
  return {tokens, at::arange(width, at::kLong).expand({count, width}), {}};
}

std::vector<at::Tensor> FullLogits(const model::Decoder& decoder, const Rows& rows) {
  std::vector<int64_t> lengths;
  for (const std::vector<int64_t>& row : rows) lengths.push_back(Length(row));
  const at::Tensor logits = decoder.Logits(decoder.Hidden(RightPadded(rows, lengths)));
  std::vector<at::Tensor> result;
  for (size_t b = 0; b < rows.size(); ++b) {
    result.push_back(logits[static_cast<int64_t>(b)].narrow(0, 0, lengths[b]));
  }
  return result;
}

std::vector<at::Tensor> CachedLogits(const model::Decoder& decoder, const Rows& rows,
                                     const std::vector<int64_t>& prefill) {
  const auto count = static_cast<int64_t>(rows.size());
  int64_t slots = 0;
  for (const std::vector<int64_t>& row : rows) slots = std::max(slots, Length(row));
  model::KvCache cache(decoder.config(), count, slots, at::kFloat);
  cache.SetLength(*std::max_element(prefill.begin(), prefill.end()));
  const at::Tensor read = decoder.Logits(decoder.Hidden(RightPadded(rows, prefill), &cache));
  std::vector<at::Tensor> result;
  for (size_t b = 0; b < rows.size(); ++b) {
    result.push_back(read[static_cast<int64_t>(b)].narrow(0, 0, prefill[b]));
  }
  cache.SetLength(slots);
  for (int64_t step = 0;; ++step) {
    std::vector<int64_t> tokens, positions;
    bool any = false;
    for (size_t b = 0; b < rows.size(); ++b) {
      // A row that is at its end repeats its last token in its place.
      positions.push_back(std::min(prefill[b] + step, Length(rows[b]) - 1));
      tokens.push_back(rows[b][static_cast<size_t>(positions.back())]);
      any |= prefill[b] + step < Length(rows[b]);
    }
    if (!any) return result;
    const at::Tensor logits = decoder.Logits(decoder.Hidden(
        {at::tensor(tokens, at::kLong).unsqueeze(1), at::tensor(positions, at::kLong).unsqueeze(1), {}}, &cache));
    for (size_t b = 0; b < rows.size(); ++b) {
      if (prefill[b] + step >= Length(rows[b])) continue;
      result[b] = at::cat({result[b], logits[static_cast<int64_t>(b)]});
    }
  }
}

int Run(const std::string& folder, const std::string& mode) {
  at::NoGradGuard no_grad;
  at::set_num_threads(1);
  const auto decoder = model::LoadCheckpoint(Env::Real(), folder, at::kCPU);
  if (!decoder.ok()) {
    std::cerr << decoder.status().message() << "\n";
    return 2;
  }
  const auto input = nlohmann::json::parse(std::cin);
  const auto rows = input.at("rows").get<Rows>();
  const std::vector<at::Tensor> logits =
      mode == "full" ? FullLogits(*decoder, rows)
                     : CachedLogits(*decoder, rows, input.at("prefill").get<std::vector<int64_t>>());
  for (const at::Tensor& row : logits) {
    const at::Tensor dense = row.contiguous();
    std::cout.write(reinterpret_cast<const char*>(dense.const_data_ptr()),
                    static_cast<std::streamsize>(dense.nbytes()));
  }
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace tdock

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[2] : "";
  if (mode != "full" && mode != "cached") {
    std::cerr << "usage: tdock_logits MODEL full|cached\n";
    return 2;
  }
  try {
    return tdock::Run(argv[1], mode);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
