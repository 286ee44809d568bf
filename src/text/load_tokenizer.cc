#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "text/json_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using Loaded = absl::StatusOr<std::unique_ptr<Tokenizer>>;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr int kMaxDepth = 32;
constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kModel[] = "tokenizer.model";
constexpr char kConfig[] = "tokenizer_config.json";

// The contents of a file; nothing where there is none.
absl::StatusOr<std::optional<std::string>> ReadFile(Env& env, const std::string& folder, const char* name) {
  absl::StatusOr<std::string> contents = ReadFileUpTo(env, JoinPath(folder, name), kMaxFileBytes);
  if (absl::IsNotFound(contents.status())) return std::nullopt;
  if (!contents.ok()) return contents.status();
  return *std::move(contents);
}

absl::StatusOr<TokenizerConfig> ParseConfig(const std::optional<std::string>& text) {
  if (!text) return TokenizerConfig{};
  const absl::StatusOr<Json> json = ParseJsonObject(*text, kMaxDepth);
  if (!json.ok()) return Annotate(json.status(), kConfig);
  return ReadTokenizerConfig(*json);
}

Loaded LoadJsonTokenizer(const std::string& tokenizer, const std::optional<std::string>& config_text,
                         SavedFiles files) {
  const absl::StatusOr<Json> json = ParseJsonObject(tokenizer, kMaxDepth);
  if (!json.ok()) return Annotate(json.status(), kTokenizer);
  TDOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, ParseConfig(config_text));
  absl::StatusOr<std::unique_ptr<JsonTokenizer>> made = JsonTokenizer::Create(*json, config, std::move(files));
  if (!made.ok()) return Annotate(made.status(), kTokenizer);
  return *std::move(made);
}

Loaded LoadSentencePiece(const std::string& model, const std::optional<std::string>& config_text, SavedFiles files) {
  TDOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, ParseConfig(config_text));
  auto made = SentencePieceTokenizer::Create(model, config, std::move(files));
  if (!made.ok()) return Annotate(made.status(), kModel);
  return *std::move(made);
}

}  // namespace

Loaded LoadTokenizer(Env& env, const std::string& folder) {
  SavedFiles files;
  std::optional<std::string> tokenizer, model, config, added;
  const auto read = [&](const char* name, std::optional<std::string>& contents) -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(contents, ReadFile(env, folder, name));
    if (contents) files.emplace_back(name, *contents);
    return absl::OkStatus();
  };
  std::optional<std::string> special;  // repeats what the others say, and is only saved
  TDOCK_RETURN_IF_ERROR(read(kTokenizer, tokenizer));
  TDOCK_RETURN_IF_ERROR(read(kConfig, config));
  TDOCK_RETURN_IF_ERROR(read("special_tokens_map.json", special));
  if (!tokenizer) {
    TDOCK_RETURN_IF_ERROR(read(kModel, model));
    TDOCK_RETURN_IF_ERROR(read("added_tokens.json", added));
  }
  if (!tokenizer && !model) {
    return absl::NotFoundError(
        absl::StrCat("there is neither ", JoinPath(folder, kTokenizer), " nor ", JoinPath(folder, kModel)));
  }
  if (added) {
    return absl::UnimplementedError(absl::StrCat(JoinPath(folder, "added_tokens.json"), " is not supported beside ",
                                                 kModel, "; a ", kTokenizer, " can hold added tokens"));
  }
  Loaded made = tokenizer ? LoadJsonTokenizer(*tokenizer, config, std::move(files))
                          : LoadSentencePiece(*model, config, std::move(files));
  if (!made.ok()) return Annotate(made.status(), folder);
  return made;
}

}  // namespace tdock::text
