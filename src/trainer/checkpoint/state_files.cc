#include "trainer/checkpoint/state_files.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "model/decoder/weights.h"
#include "model/files/safetensors.h"

namespace tdock::trainer {
namespace {

constexpr char kTexts[] = "state.json";
constexpr char kTensors[] = "state.safetensors";
constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

}  // namespace

absl::Status WriteState(Env& env, const std::string& folder, const State& state) {
  const model::NamedTensors tensors(state.tensors().begin(), state.tensors().end());
  TDOCK_RETURN_IF_ERROR(model::WriteTensors(env, JoinPath(folder, kTensors), tensors));
  nlohmann::ordered_json texts = nlohmann::ordered_json::object();
  for (const auto& [name, text] : state.texts()) texts[name] = text;
  return WriteFileAtomically(env, JoinPath(folder, kTexts), texts.dump(1) + "\n");
}

absl::StatusOr<State> ReadStateTexts(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, kTexts);
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, path, kMaxTextBytes));
  const absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(text, /*max_depth=*/1);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  State state;
  for (const auto& [name, value] : parsed->items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": '", name, "' is not a text"));
    }
    state.SetText(name, value.get<std::string>());
  }
  return state;
}

absl::StatusOr<State> ReadState(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(State state, ReadStateTexts(env, folder));
  const std::string path = JoinPath(folder, kTensors);
  TDOCK_ASSIGN_OR_RETURN(const model::SafetensorsFile file, model::SafetensorsFile::Open(env, path));
  for (const std::string& name : file.names()) {
    absl::StatusOr<at::Tensor> tensor = model::ReadTensor(file, name);
    if (!tensor.ok()) return Annotate(tensor.status(), path);
    state.SetTensor(name, *tensor);
  }
  return state;
}

}  // namespace tdock::trainer
