#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/json_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using Loaded = absl::StatusOr<std::unique_ptr<Tokenizer>>;

constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;
constexpr int kMaxDepth = 32;
constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kModel[] = "tokenizer.model";

// The contents of a file; nothing where there is none.
absl::StatusOr<std::optional<std::string>> ReadFile(Env& env, const std::string& folder, const char* name) {
  absl::StatusOr<std::string> contents = ReadFileUpTo(env, JoinPath(folder, name), kMaxTokenizerBytes);
  if (absl::IsNotFound(contents.status())) return std::nullopt;
  if (!contents.ok()) return contents.status();
  return *std::move(contents);
}

// Null where there is no such file.
absl::StatusOr<Json> Parse(const std::optional<std::string>& text, const char* name) {
  if (!text) return Json();
  absl::StatusOr<Json> json = ParseJsonObject(*text, kMaxDepth);
  if (!json.ok()) return Annotate(json.status(), name);
  return json;
}

Loaded LoadJsonTokenizer(const std::string& tokenizer, const TokenizerConfig& config, SavedFiles files) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, Parse(tokenizer, kTokenizer));
  absl::StatusOr<std::unique_ptr<JsonTokenizer>> made = JsonTokenizer::Create(json, config, std::move(files));
  if (!made.ok()) return Annotate(made.status(), kTokenizer);
  return *std::move(made);
}

Loaded LoadSentencePiece(const std::string& model, const TokenizerConfig& config, SavedFiles files) {
  auto made = SentencePieceTokenizer::Create(model, config, std::move(files));
  if (!made.ok()) return Annotate(made.status(), kModel);
  return *std::move(made);
}

// "owner/name", or "name".
bool LooksLikeHubName(absl::string_view path) {
  const size_t slash = path.find('/');
  return !path.empty() && path.front() != '.' && path.front() != '~' && slash != 0 && slash + 1 != path.size() &&
         path.rfind('/') == slash;
}

absl::Status NoFolder(Env& env, const std::string& folder) {
  const std::string shown = EscapeForMessage(folder, 500);
  if (env.Exists(folder)) {
    return absl::NotFoundError(absl::StrCat(shown, " is a file; name the folder of the model instead"));
  }
  std::string message = absl::StrCat("there is no folder ", shown, " with a model");
  if (LooksLikeHubName(folder)) {
    absl::StrAppend(&message, ". If it is a model on the Hugging Face hub: nothing is downloaded; run `hf download ",
                    shown, " --local-dir FOLDER`, then give FOLDER instead");
  }
  return absl::NotFoundError(message);
}

// The files of a folder that have to do with its tokenizer.
struct Files {
  std::optional<std::string> tokenizer, model, config, special;
  SavedFiles saved;
};

absl::StatusOr<Files> ReadFiles(Env& env, const std::string& folder) {
  Files files;
  std::optional<std::string> added;
  const auto read = [&](const char* name, std::optional<std::string>& contents) -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(contents, ReadFile(env, folder, name));
    if (contents) files.saved.emplace_back(name, *contents);
    return absl::OkStatus();
  };
  TDOCK_RETURN_IF_ERROR(read(kTokenizer, files.tokenizer));
  TDOCK_RETURN_IF_ERROR(read(kTokenizerConfig, files.config));
  TDOCK_RETURN_IF_ERROR(read(kSpecialTokensMap, files.special));
  if (files.tokenizer) return files;
  TDOCK_RETURN_IF_ERROR(read(kModel, files.model));
  TDOCK_RETURN_IF_ERROR(read("added_tokens.json", added));
  if (!files.model) {
    if (absl::IsNotFound(env.List(folder).status())) return NoFolder(env, folder);
    return absl::NotFoundError(
        absl::StrCat("there is neither ", JoinPath(folder, kTokenizer), " nor ", JoinPath(folder, kModel)));
  }
  if (added) {
    return absl::UnimplementedError(absl::StrCat(JoinPath(folder, "added_tokens.json"), " is not supported beside ",
                                                 kModel, "; a ", kTokenizer, " can hold added tokens"));
  }
  return files;
}

Loaded Load(Files files) {
  TDOCK_ASSIGN_OR_RETURN(const Json config_json, Parse(files.config, kTokenizerConfig));
  TDOCK_ASSIGN_OR_RETURN(const Json special_json, Parse(files.special, kSpecialTokensMap));
  TDOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(config_json, special_json));
  if (files.tokenizer) return LoadJsonTokenizer(*files.tokenizer, config, std::move(files.saved));
  return LoadSentencePiece(*files.model, config, std::move(files.saved));
}

}  // namespace

Loaded LoadTokenizer(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(Files files, ReadFiles(env, folder));
  Loaded made = Load(std::move(files));
  if (!made.ok()) return Annotate(made.status(), folder);
  return made;
}

}  // namespace tdock::text
