#include "trainer/loop/run_models.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/loop/model_files.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {

void RunModels::BeginTraining() {
  policy.decoder.SetTrainable(true);
  for (auto& [name, model] : others) model.policy.decoder.SetTrainable(model.role.trained);
}

absl::Status RunModels::SaveForUse(Env& env, const std::string& folder, const text::Tokenizer& tokenizer,
                                   const ModelSection& section,
                                   const std::function<absl::Status()>& swap_average) const {
  if (swap_average != nullptr) {
    TDOCK_RETURN_IF_ERROR(swap_average());
    // Whatever comes of it, the weights are exchanged back: the caller may try another folder.
    const absl::Status saved =
        Guarded([&] { return trainer::SaveForUse(env, folder + "-ema", policy.decoder, tokenizer, section); });
    TDOCK_RETURN_IF_ERROR(swap_average());
    TDOCK_RETURN_IF_ERROR(saved);
  }
  for (const auto& [name, model] : others) {
    if (!model.role.trained) continue;
    TDOCK_RETURN_IF_ERROR(trainer::SaveForUse(env, absl::StrCat(folder, "-", name), model.policy.decoder, tokenizer,
                                              *model.role.section));
  }
  return trainer::SaveForUse(env, folder, policy.decoder, tokenizer, section);
}

void RunModels::RemoveSaved(Env& env, const std::string& folder) const {
  env.RemoveAll(folder).IgnoreError();
  env.RemoveAll(folder + "-ema").IgnoreError();
  for (const auto& [name, model] : others) env.RemoveAll(absl::StrCat(folder, "-", name)).IgnoreError();
}

}  // namespace tdock::trainer
