#include "trainer/checkpoint/state_files.h"

#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/weights.h"
#include "model/files/safetensors.h"
#include "trainer/checkpoint/parts/state_texts.h"

namespace tdock::trainer {
namespace {

constexpr char kState[] = "state";  // of a process that is alone, or of rank 0
constexpr absl::string_view kTexts = ".json", kTensors = ".safetensors";
constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

// As files of this name.
absl::Status WriteAs(Env& env, const std::string& folder, absl::string_view name, const State& state) {
  const model::NamedTensors tensors(state.tensors().begin(), state.tensors().end());
  TDOCK_RETURN_IF_ERROR(model::WriteTensors(env, JoinPath(folder, absl::StrCat(name, kTensors)), tensors));
  nlohmann::ordered_json texts = nlohmann::ordered_json::object();
  for (const auto& [key, text] : state.texts()) texts[key] = text;
  return WriteFileAtomically(env, JoinPath(folder, absl::StrCat(name, kTexts)), JsonText(texts, 1) + "\n");
}

absl::StatusOr<State> ReadTexts(Env& env, const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, path, kMaxTextBytes));
  const absl::StatusOr<std::map<std::string, std::string>> texts = ParseStateTexts(text);
  if (!texts.ok()) return Annotate(texts.status(), path);
  State state;
  for (const auto& [name, value] : *texts) state.SetText(name, value);
  return state;
}

// Adds the tensors of a file.
absl::Status AddTensors(Env& env, const std::string& path, State& state) {
  TDOCK_ASSIGN_OR_RETURN(const model::SafetensorsFile file, model::SafetensorsFile::Open(env, path));
  State tensors;
  for (const std::string& name : file.names()) {
    absl::StatusOr<at::Tensor> tensor = model::ReadTensor(file, name);
    if (!tensor.ok()) return Annotate(tensor.status(), path);
    tensors.SetTensor(name, *tensor);
  }
  return Annotate(state.Merge(tensors), path);
}

absl::Status CheckSameTexts(const State& first, const State& other, const std::string& file) {
  for (const auto& [name, text] : other.texts()) {
    const auto found = first.texts().find(name);
    if (found == first.texts().end() || found->second == text) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeUnprintable(file), " is of another moment than that of rank 0: '", EscapeForMessage(name),
                     "' is ", EscapeForMessage(text), ", not ", EscapeForMessage(found->second)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteState(Env& env, const std::string& folder, const State& state) {
  return WriteAs(env, folder, kState, state);
}

absl::Status WriteRankState(Env& env, const std::string& folder, int rank, int ranks, const State& state) {
  TDOCK_CHECK(rank >= 1 && rank < ranks, "rank 0 has the rest");
  return WriteAs(env, folder, RankStateName(rank, ranks), state);
}

absl::StatusOr<State> ReadStateTexts(Env& env, const std::string& folder) {
  return ReadTexts(env, JoinPath(folder, absl::StrCat(kState, kTexts)));
}

absl::StatusOr<std::vector<std::string>> StateTensorFiles(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(const State texts, ReadStateTexts(env, folder));
  std::vector<std::string> found = {JoinPath(folder, absl::StrCat(kState, kTensors))};
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, env.List(folder));
  const absl::StatusOr<int64_t> ranks = RanksThatWrote(files);
  if (!ranks.ok()) return Annotate(ranks.status(), folder);
  for (int64_t rank = 1; rank < *ranks; ++rank) {
    const std::string file = JoinPath(folder, RankStateName(rank, *ranks));
    found.push_back(absl::StrCat(file, kTensors));
    const absl::StatusOr<State> part = ReadTexts(env, absl::StrCat(file, kTexts));
    if (absl::IsNotFound(part.status()) || !env.Exists(found.back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          EscapeUnprintable(folder), " was written by ", *ranks, " ranks, and lacks what rank ", rank, " wrote: ",
          part.ok() ? absl::StrCat("there is no ", EscapeUnprintable(found.back())) : part.status().message()));
    }
    TDOCK_RETURN_IF_ERROR(part.status());
    TDOCK_RETURN_IF_ERROR(CheckSameTexts(texts, *part, file));
  }
  return found;
}

absl::StatusOr<State> ReadState(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(State state, ReadStateTexts(env, folder));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, StateTensorFiles(env, folder));
  for (const std::string& file : files) TDOCK_RETURN_IF_ERROR(AddTensors(env, file, state));
  return state;
}

}  // namespace tdock::trainer
