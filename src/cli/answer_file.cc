#include "cli/answer_file.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/line_reader.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxStateBytes = uint64_t{1} << 20;
constexpr size_t kMaxAnswerBytes = size_t{1} << 30;

constexpr absl::string_view kAdvice = "give --overwrite to begin anew, or another --output";

std::string StatePath(const std::string& path) { return absl::StrCat(path, ".state.json"); }

std::string TextOf(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() ? "nothing" : JsonText(*found);
}

}  // namespace

AnswerFile::AnswerFile(Env& env, const Options& options)
    : env_(env),
      options_(options),
      state_path_(StatePath(options.path)),
      has_(static_cast<size_t>(options.lines * options.samples)) {}

absl::StatusOr<std::unique_ptr<AnswerFile>> AnswerFile::Open(Env& env, const Options& options, const Json& made_with) {
  std::unique_ptr<AnswerFile> made(new AnswerFile(env, options));
  const std::string& path = options.path;
  if (env.Exists(path)) TDOCK_RETURN_IF_ERROR(env.OpenForReading(path).status());  // which only a regular file can be
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Take(absl::StrCat(path, ".lock"), "tdock generate");
  if (absl::IsAlreadyExists(lock.status())) {
    return absl::AlreadyExistsError(absl::StrCat("another process writes to ", EscapeUnprintable(path),
                                                 " at this moment: ", lock.status().message(),
                                                 "; wait for its end, or give another --output"));
  }
  TDOCK_RETURN_IF_ERROR(lock.status());
  made->lock_ = *std::move(lock);
  if (options.overwrite && env.Exists(path)) TDOCK_RETURN_IF_ERROR(env.Remove(path));
  if (env.Exists(path)) {
    TDOCK_RETURN_IF_ERROR(made->CheckState(made_with));
    TDOCK_RETURN_IF_ERROR(made->ReadAnswers());
  } else {
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, made->state_path_, JsonText(made_with, 2) + "\n"));
  }
  TDOCK_ASSIGN_OR_RETURN(made->file_, env.OpenForWriting(path, WriteMode::kAppend));
  return made;
}

std::optional<Json> AnswerFile::MadeWith(Env& env, const std::string& path) {
  if (!env.Exists(path)) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadFileUpTo(env, StatePath(path), kMaxStateBytes);
  if (!text.ok()) return std::nullopt;
  Json state = ReadOrderedJson(*text);
  return state.is_object() ? std::optional(std::move(state)) : std::nullopt;
}

absl::Status AnswerFile::CheckState(const Json& made_with) const {
  if (!env_.Exists(state_path_)) {
    return absl::FailedPreconditionError(absl::StrCat(EscapeUnprintable(options_.path), " is there already, and ",
                                                      EscapeUnprintable(state_path_),
                                                      ", which would say what it was made with, is not; ", kAdvice));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env_, state_path_, kMaxStateBytes));
  const Json state = ReadOrderedJson(text);
  if (!state.is_object()) {
    return absl::DataLossError(absl::StrCat(EscapeUnprintable(state_path_), " is not an object in JSON; ", kAdvice));
  }
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& name) {
    const std::string then = TextOf(state, name), now = TextOf(made_with, name);
    if (then == now) return;
    differences.push_back(absl::StrCat(EscapeForMessage(name), " was ", EscapeForMessage(then), " and is ",
                                       EscapeForMessage(now), " now"));
  };
  for (const auto& [name, value] : made_with.items()) compare(name);
  for (const auto& [name, value] : state.items()) {
    if (!made_with.contains(name)) compare(name);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the answers in ", EscapeUnprintable(options_.path),
                                                    " were made otherwise: ", absl::StrJoin(differences, "; "), "; ",
                                                    kAdvice));
}

absl::Status AnswerFile::Mark(absl::string_view line, const std::string& place) {
  const Json json = ReadOrderedJson(line);
  const auto number = [&](const char* name, int64_t least, int64_t most) -> std::optional<int64_t> {
    if (!json.is_object() || !json.contains(name) || !json[name].is_number_integer()) return std::nullopt;
    const auto value = json[name].get<int64_t>();
    return value >= least && value <= most ? std::optional(value) : std::nullopt;
  };
  const std::optional<int64_t> of = number("line", 1, options_.lines);
  const std::optional<int64_t> sample = options_.numbered ? number("sample", 0, options_.samples - 1) : 0;
  if (!of || !sample) {
    return absl::DataLossError(
        absl::StrCat(place, ": it is not an answer to a line of the input; remove it, or ", kAdvice));
  }
  if (has_[Index(*of, *sample)]) {
    return absl::DataLossError(absl::StrCat(place, ": it is another answer ", *sample, " to line ", *of,
                                            " of the input; remove one of them, or ", kAdvice));
  }
  has_[Index(*of, *sample)] = true;
  ++found_;
  return options_.on_found ? Annotate(options_.on_found(json), place) : absl::OkStatus();
}

absl::Status AnswerFile::ReadAnswers() {
  TDOCK_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(env_, options_.path, kMaxAnswerBytes));
  uint64_t whole = 0;
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, reader.Next());
    if (!line) return absl::OkStatus();
    if (!reader.is_ended()) return KeepOnly(whole);
    TDOCK_RETURN_IF_ERROR(Mark(*line, reader.Place()));
    whole = reader.end();
  }
}

absl::Status AnswerFile::KeepOnly(uint64_t bytes) const {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, env_.OpenForReading(options_.path));
  return WriteFileAtomically(env_, options_.path, [&](WritableFile& into) {
    std::string piece;
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min(uint64_t{1} << 20, bytes - done));
      TDOCK_RETURN_IF_ERROR(file->ReadAt(done, std::span(piece)));
      TDOCK_RETURN_IF_ERROR(into.Append(piece));
    }
    return absl::OkStatus();
  });
}

absl::Status AnswerFile::Close() {
  TDOCK_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace tdock::cli
