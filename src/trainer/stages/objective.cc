#include "trainer/stages/objective.h"

#include <ATen/ATen.h>

namespace tdock::trainer {

TokenBatch PartOf(const TokenBatch& mini_batch, const MicroBatch& micro) {
  const auto cut = [&](const at::Tensor& all) { return all.narrow(0, micro.first_token, micro.tokens); };
  TokenBatch part{.tokens = {.mask = cut(mini_batch.tokens.mask),
                             .sequence = cut(mini_batch.tokens.sequence) - micro.first_sample,
                             .sequences = static_cast<int64_t>(micro.samples.size())},
                  .counts = mini_batch.counts,
                  .log_probs = {},
                  .entropy = {},
                  .columns = {}};
  for (const auto& [name, column] : mini_batch.columns) part.columns[name] = {cut(column.values), column.fresh};
  return part;
}

}  // namespace tdock::trainer
