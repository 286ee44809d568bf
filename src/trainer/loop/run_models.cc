#include "trainer/loop/run_models.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/loop/model_files.h"

namespace tdock::trainer {

void RunModels::BeginTraining(double ema_decay) {
  policy.decoder.SetTrainable(true);
  for (auto& [name, model] : others) model.policy.decoder.SetTrainable(model.role.trained);
  if (ema_decay > 0) average.emplace(policy.decoder, ema_decay);
}

absl::Status RunModels::SaveForUse(Env& env, const std::string& folder, const text::Tokenizer& tokenizer,
                                   const ModelSection& section) {
  if (average.has_value()) {
    average->Swap();
    TDOCK_RETURN_IF_ERROR(trainer::SaveForUse(env, folder + "-ema", policy.decoder, tokenizer, section));
    average->Swap();
  }
  for (const auto& [name, model] : others) {
    if (!model.role.trained) continue;
    TDOCK_RETURN_IF_ERROR(trainer::SaveForUse(env, absl::StrCat(folder, "-", name), model.policy.decoder, tokenizer,
                                              *model.role.section));
  }
  return trainer::SaveForUse(env, folder, policy.decoder, tokenizer, section);
}

}  // namespace tdock::trainer
