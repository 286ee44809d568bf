// What tokenizer.json of the Python package tokenizers 0.23 means is taken from its sources (models/bpe, tokenizer/
// added_vocabulary.rs); a character tokenizer is its BPE model with no merges and nothing before it:
//
//   text ── added tokens cut out ── (no normalizer, no pre-tokenizer) ── BPE: one token per character ── ids
//   ids ── tokens ── decoder Fuse: joined with nothing between ── text
#include "text/tokenizer_files.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/utf8.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxTokens = 1 << 22;
constexpr absl::string_view kTokenizer = "tokenizer.json";
constexpr absl::string_view kConfig = "tokenizer_config.json";

absl::Status Damaged(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

// A value in a message: short, on one line.
std::string Shown(const Json& value) {
  if (value.is_object() && value.contains("type") && value["type"].is_string()) {
    return absl::StrCat("of type ", Shown(value["type"]));
  }
  if (value.is_structured()) return value.is_object() ? "an object" : "a list";
  return value.is_string() ? absl::StrCat("\"", EscapeForMessage(value.get_ref<const std::string&>()), "\"")
                           : value.dump();
}

absl::StatusOr<Json> Parse(absl::string_view text, absl::string_view file) {
  if (text.size() > kMaxFileBytes) {
    return Damaged(file, absl::StrCat("the file has ", text.size(), " bytes; at most ", kMaxFileBytes, " are read"));
  }
  absl::StatusOr<Json> parsed = ParseJsonObject(text, kMaxDepth);
  if (!parsed.ok()) return Annotate(parsed.status(), file);
  return parsed;
}

// What a file may say at one place. `accepted` are the values under which this tokenizer works as the file demands.
struct Accepted {
  const char* key;
  std::vector<Json> values;
};

// Every key of `object` but `own` must be listed with the value that it has. An absent key is as good as null.
absl::Status CheckOnly(const Json& object, absl::string_view where, std::initializer_list<const char*> own,
                       const std::vector<Accepted>& accepted) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    const auto rule = std::find_if(accepted.begin(), accepted.end(), [&](const Accepted& a) { return key == a.key; });
    if (rule != accepted.end() && std::find(rule->values.begin(), rule->values.end(), value) != rule->values.end()) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(where, ": \"", EscapeForMessage(key), "\" ",
                                                 value.is_object() ? "" : "= ", Shown(value), " is not supported"));
  }
  return absl::OkStatus();
}

const Json& At(const Json& object, const char* key) {
  static const Json* const null = new Json;
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}

absl::Status CheckDecoder(const Json& decoder) {
  if (decoder.is_object() && At(decoder, "type") == "Fuse") return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(kTokenizer, ": \"decoder\" ", Shown(decoder), " is not supported; only the type \"Fuse\" is"));
}

absl::Status CheckModel(const Json& model) {
  if (!model.is_object()) return Damaged(kTokenizer, "\"model\" is missing or not an object");
  if (At(model, "type") != "BPE") {
    return absl::UnimplementedError(
        absl::StrCat(kTokenizer, ": the model ", Shown(model), " is not supported; only \"BPE\" without merges is"));
  }
  const Json& merges = At(model, "merges");
  if (!merges.is_array()) return Damaged(kTokenizer, "\"model.merges\" is missing or not a list");
  if (!merges.empty()) {
    return absl::UnimplementedError(absl::StrCat(kTokenizer, ": \"model.merges\" holds ", merges.size(),
                                                 " merges; only a model without any is supported"));
  }
  return CheckOnly(model, absl::StrCat(kTokenizer, ": model"), {"type", "vocab", "merges"},
                   {{"dropout", {nullptr, 0.0}},
                    {"unk_token", {nullptr}},
                    {"continuing_subword_prefix", {nullptr, ""}},
                    {"end_of_word_suffix", {nullptr, ""}},
                    {"fuse_unk", {false}},
                    {"byte_fallback", {false}},
                    {"ignore_merges", {false}}});
}

absl::StatusOr<int64_t> ReadId(const Json& value, absl::string_view token) {
  const bool fits = value.is_number_integer() && value >= 0 && value < kMaxTokens;
  if (!fits) {
    return Damaged(kTokenizer, absl::StrCat("the id of ", Shown(Json(token)), " is ", Shown(value),
                                            ", not an integer from 0 to ", kMaxTokens - 1));
  }
  return value.get<int64_t>();
}

// transformers adds to a file that it saves a template that adds nothing, and how it padded last, which does not change
// what one text encodes to.
absl::Status CheckPostProcessing(const Json& tokenizer) {
  const Json& post = At(tokenizer, "post_processor");
  const Json text_alone = Json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  const bool adds_nothing = post.is_null() || (post.is_object() && At(post, "type") == "TemplateProcessing" &&
                                               At(post, "single") == text_alone);
  if (!adds_nothing) {
    return absl::UnimplementedError(absl::StrCat(kTokenizer, ": \"post_processor\" ", Shown(post),
                                                 " is not supported; only a template that adds nothing is"));
  }
  const Json& padding = At(tokenizer, "padding");
  if (!padding.is_null() && !(padding.is_object() && At(padding, "strategy") == "BatchLongest")) {
    return absl::UnimplementedError(absl::StrCat(kTokenizer, ": \"padding\" ", Shown(padding),
                                                 " is not supported; only null and \"BatchLongest\" are"));
  }
  return absl::OkStatus();
}

using TokensById = std::map<int64_t, CharTokenizer::Token>;

absl::Status AddToken(TokensById& tokens, int64_t id, CharTokenizer::Token token) {
  const auto [place, is_new] = tokens.try_emplace(id, token);
  if (!is_new && place->second.text != token.text) {
    return Damaged(kTokenizer, absl::StrCat("the tokens ", Shown(place->second.text), " and ", Shown(token.text),
                                            " both have the id ", id));
  }
  place->second.special |= token.special;
  return absl::OkStatus();
}

absl::Status ReadAddedToken(TokensById& tokens, const Json& added, const Json& vocab) {
  const Json& content = added.is_object() ? At(added, "content") : added;
  if (!added.is_object() || !content.is_string()) return Damaged(kTokenizer, "an added token has no \"content\"");
  const auto text = content.get<std::string>();
  // Not special ones, and those that swallow blanks around them, would change how text is read.
  TDOCK_RETURN_IF_ERROR(CheckOnly(added, absl::StrCat(kTokenizer, ": added token ", Shown(content)), {"id", "content"},
                                  {{"special", {true}},
                                   {"single_word", {false}},
                                   {"lstrip", {false}},
                                   {"rstrip", {false}},
                                   {"normalized", {false, true}}}));
  if (At(added, "special") != true) {
    return absl::UnimplementedError(
        absl::StrCat(kTokenizer, ": added token ", Shown(content), " without \"special\" is not supported"));
  }
  TDOCK_ASSIGN_OR_RETURN(const int64_t id, ReadId(At(added, "id"), text));
  // The Python package ignores the id in the file and gives the next free one to what the model does not know.
  const auto next = static_cast<int64_t>(tokens.size());
  if (!vocab.contains(text) && id != next) {
    return Damaged(kTokenizer, absl::StrCat("the id of the added token ", Shown(content), " is ", id, ", not ", next,
                                            ", the next after those before it"));
  }
  return AddToken(tokens, id, {.text = text, .special = true});
}

absl::StatusOr<std::vector<CharTokenizer::Token>> ReadTokens(const Json& tokenizer) {
  const Json& vocab = At(tokenizer["model"], "vocab");
  const Json& added = At(tokenizer, "added_tokens");
  if (!vocab.is_object()) return Damaged(kTokenizer, "\"model.vocab\" is missing or not an object");
  if (!added.is_array()) return Damaged(kTokenizer, "\"added_tokens\" is missing or not a list");
  TokensById by_id;
  for (const auto& [text, value] : vocab.items()) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t id, ReadId(value, text));
    TDOCK_RETURN_IF_ERROR(AddToken(by_id, id, {.text = text, .special = false}));
  }
  for (const Json& token : added) TDOCK_RETURN_IF_ERROR(ReadAddedToken(by_id, token, vocab));

  std::vector<CharTokenizer::Token> tokens;
  for (auto& [id, token] : by_id) {
    if (id != static_cast<int64_t>(tokens.size())) {
      return Damaged(kTokenizer, absl::StrCat("no token has the id ", tokens.size(), ", but ids reach ", id));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// A special token's name in tokenizer_config.json: a string, or an object with "content".
absl::StatusOr<int32_t> FindSpecial(const Json& config, const char* key,
                                    const std::vector<CharTokenizer::Token>& tokens) {
  const Json& value = At(config, key);
  const Json& content = value.is_object() ? At(value, "content") : value;
  if (!content.is_string()) return Damaged(kConfig, absl::StrCat("\"", key, "\" is missing or not text"));
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].special && tokens[id].text == content.get_ref<const std::string&>()) return static_cast<int32_t>(id);
  }
  return Damaged(kConfig, absl::StrCat("\"", key, "\" is ", Shown(content), ", which ", kTokenizer,
                                       " does not have among its added tokens"));
}

absl::Status CheckConfig(const Json& config) {
  // Others, such as a chat template, do not change what text encodes to.
  const std::vector<Accepted> rules = {{"tokenizer_class", {"PreTrainedTokenizerFast", "TokenizersBackend"}},
                                       {"clean_up_tokenization_spaces", {false, nullptr}},
                                       {"add_bos_token", {false, nullptr}},
                                       {"add_eos_token", {false, nullptr}},
                                       {"add_prefix_space", {false, nullptr}},
                                       {"do_lower_case", {false, nullptr}},
                                       {"split_special_tokens", {false, nullptr}}};
  for (const Accepted& rule : rules) {
    if (!config.contains(rule.key)) continue;
    TDOCK_RETURN_IF_ERROR(CheckOnly(Json{{rule.key, config[rule.key]}}, kConfig, {}, rules));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadMaxLength(const Json& config) {
  const Json& value = At(config, "model_max_length");
  // transformers writes 1e30, as an integer, for "no limit".
  if (value.is_null() || (value.is_number() && value.get<double>() >= 1e18)) return std::nullopt;
  if (!value.is_number_integer() || value < 1) {
    return Damaged(kConfig, absl::StrCat("\"model_max_length\" is ", Shown(value), ", not a positive integer"));
  }
  return value.get<int64_t>();
}

}  // namespace

TokenizerFiles WriteTokenizerFiles(const TokenizerParts& parts) {
  OrderedJson vocab = OrderedJson::object();
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const CharTokenizer::Token& token = parts.tokens[id];
    vocab[token.text] = id;
    if (!token.special) continue;
    added.push_back({{"id", id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  OrderedJson model = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocab)},
                       {"merges", OrderedJson::array()}};
  const OrderedJson tokenizer = {{"version", "1.0"},          {"truncation", nullptr},
                                 {"padding", nullptr},        {"added_tokens", std::move(added)},
                                 {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
                                 {"post_processor", nullptr}, {"decoder", {{"type", "Fuse"}}},
                                 {"model", std::move(model)}};
  const std::string& eos = parts.tokens[static_cast<size_t>(parts.eos_id)].text;
  const std::string& pad = parts.tokens[static_cast<size_t>(parts.pad_id)].text;
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"eos_token", eos},
                        {"pad_token", pad},
                        {"clean_up_tokenization_spaces", false}};
  if (parts.max_length) config["model_max_length"] = *parts.max_length;
  const OrderedJson specials = {{"eos_token", eos}, {"pad_token", pad}};
  return {tokenizer.dump(2) + "\n", config.dump(2) + "\n", specials.dump(2) + "\n"};
}

absl::StatusOr<TokenizerParts> ReadTokenizerFiles(absl::string_view tokenizer_text, absl::string_view config_text) {
  TDOCK_ASSIGN_OR_RETURN(const Json tokenizer, Parse(tokenizer_text, kTokenizer));
  TDOCK_ASSIGN_OR_RETURN(const Json config, Parse(config_text, kConfig));
  TDOCK_RETURN_IF_ERROR(CheckOnly(
      tokenizer, kTokenizer, {"model", "added_tokens", "decoder", "post_processor", "padding"},
      {{"version", {"1.0"}}, {"truncation", {nullptr}}, {"normalizer", {nullptr}}, {"pre_tokenizer", {nullptr}}}));
  TDOCK_RETURN_IF_ERROR(CheckDecoder(At(tokenizer, "decoder")));
  TDOCK_RETURN_IF_ERROR(CheckPostProcessing(tokenizer));
  TDOCK_RETURN_IF_ERROR(CheckModel(At(tokenizer, "model")));
  TDOCK_RETURN_IF_ERROR(CheckConfig(config));
  TokenizerParts parts;
  TDOCK_ASSIGN_OR_RETURN(parts.tokens, ReadTokens(tokenizer));
  TDOCK_ASSIGN_OR_RETURN(parts.eos_id, FindSpecial(config, "eos_token", parts.tokens));
  TDOCK_ASSIGN_OR_RETURN(parts.pad_id, FindSpecial(config, "pad_token", parts.tokens));
  TDOCK_ASSIGN_OR_RETURN(parts.max_length, ReadMaxLength(config));
  return parts;
}

}  // namespace tdock::text
