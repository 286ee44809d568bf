#include "trainer/loop/run_length.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {
namespace {

// 0: as many as the steps need.
int64_t Epochs(const RunConfig& config) {
  const bool by_steps = config.trainer.total_training_steps > 0;
  return config.trainer.total_epochs > 0 || by_steps ? config.trainer.total_epochs : 1;
}

}  // namespace

data::LoaderOptions LoaderOptionsFor(const RunConfig& config, const RunContext& context) {
  data::LoaderOptions options = data::LoaderOptionsOf(config.data);
  options.batch_size = DrawnAtOnce(config);
  options.seed = DeriveSeed(SeedFor(config, SeedPurpose::kData), static_cast<uint64_t>(config.data.seed));
  options.epochs = Epochs(config);
  options.report = [&context](const absl::Status& bad) { context.log(absl::StrCat("left out: ", bad.message())); };
  return options;
}

int64_t TotalSteps(const RunConfig& config, int64_t samples) {
  const int64_t batch = DrawnAtOnce(config);
  const int64_t per_epoch = config.data.drop_last ? samples / batch : (samples + batch - 1) / batch;
  // Of gathering, as if no prompt was left out.
  const int64_t rounds = (config.data.train_batch_size + batch - 1) / batch;
  const int64_t by_epochs = (per_epoch * Epochs(config) + rounds - 1) / rounds;
  const int64_t by_steps = config.trainer.total_training_steps;
  if (Epochs(config) == 0) return by_steps;
  return by_steps > 0 ? std::min(by_steps, by_epochs) : by_epochs;
}

std::string EndingAfter(const RunConfig& config, int64_t step) {
  return step == config.trainer.total_training_steps && step > 0 ? absl::StrCat("all ", step, " steps")
                                                                 : absl::StrCat("the end of epoch ", Epochs(config));
}

}  // namespace tdock::trainer
