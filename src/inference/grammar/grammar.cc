#include "inference/grammar/grammar.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "inference/grammar/char_dfa.h"
#include "inference/grammar/json_network.h"
#include "inference/grammar/schema_network.h"

namespace tdock::inference {
namespace {

using Compiled = absl::StatusOr<std::shared_ptr<const Grammar>>;

// A schema on its way into a network.
class SchemaPart {
 public:
  static absl::StatusOr<std::unique_ptr<SchemaPart>> Parse(JsonNetwork& json, absl::string_view text,
                                                           CompileBudget& budget) {
    TDOCK_ASSIGN_OR_RETURN(SchemaDocument document, SchemaDocument::Parse(text, budget));
    return std::make_unique<SchemaPart>(json, std::move(document));
  }
  SchemaPart(JsonNetwork& json, SchemaDocument document) : document_(std::move(document)), network_(json, document_) {}

  SchemaNetwork& network() { return network_; }

 private:
  SchemaDocument document_;
  SchemaNetwork network_;
};

class GrammarCompiler {
 public:
  explicit GrammarCompiler(const GrammarSpec& spec) : spec_(spec) {
    for (const std::string& text : spec.special_tokens) {
      if (!text.empty()) special_tokens_[text[0]].push_back(text);
    }
  }

  Compiled Compile() {
    switch (spec_.kind) {
      case GrammarSpec::Kind::kJsonObject:
        builder_.AddCall(json_.AddBlanks(start_), '{', json_.any_object(), Network::kEnd);
        return Finish();
      case GrammarSpec::Kind::kJsonSchema:
        return CompileSchema();
      case GrammarSpec::Kind::kRegex:
        return CompilePattern();
      case GrammarSpec::Kind::kChoices:
        return CompileChoices();
      case GrammarSpec::Kind::kCalls:
        return CompileCalls();
    }
    return absl::InvalidArgumentError("a grammar of a kind that is not known");
  }

 private:
  Compiled Finish() {
    if (builder_.full()) {
      return absl::InvalidArgumentError(absl::StrCat("the grammar is too large: it has more than ",
                                                     NetworkBuilder::kMaxNodes, " nodes or ", NetworkBuilder::kMaxEdges,
                                                     " edges"));
    }
    return builder_.Finish(start_);
  }

  Compiled CompileSchema() {
    TDOCK_ASSIGN_OR_RETURN(const auto schema, SchemaPart::Parse(json_, spec_.text, budget_));
    TDOCK_RETURN_IF_ERROR(schema->network().Add(/*only_objects=*/false, json_.AddBlanks(start_), Network::kEnd));
    TDOCK_ASSIGN_OR_RETURN(auto grammar, Finish());
    if (grammar->height(start_) == Network::kNoHeight) return schema->network().WhyNever(*grammar);
    return grammar;
  }

  Compiled CompilePattern() {
    TDOCK_ASSIGN_OR_RETURN(const CharDfa dfa, CompileRegex(spec_.text, RegexMatch::kWhole));
    if (dfa.empty()) return absl::InvalidArgumentError("no text matches the pattern");
    json_.AddRaw(dfa, start_, Network::kEnd);
    return Finish();
  }

  Compiled CompileChoices() {
    if (spec_.choices.empty()) return absl::InvalidArgumentError("there are no choices; give at least one");
    for (const std::string& choice : spec_.choices) builder_.Join(builder_.AddText(start_, choice), Network::kEnd);
    return Finish();
  }

  Compiled CompileCalls() {
    if (spec_.calls.empty()) return absl::InvalidArgumentError("there are no functions to call; give at least one");
    TDOCK_RETURN_IF_ERROR(CheckBeginnings());
    const NodeId call = builder_.NewNode(), called = builder_.NewNode();
    builder_.Join(AddSpelled(start_, spec_.before_calls), call);
    builder_.Join(AddSpelled(called, spec_.after_calls), Network::kEnd);
    if (!spec_.one_call) builder_.Join(AddSpelled(called, spec_.between_calls), call);
    std::vector<std::pair<NodeId, std::unique_ptr<SchemaPart>>> parts;
    for (const CallRule& rule : spec_.calls) {
      const auto named = [&](const absl::Status& status) {
        return Annotate(status, absl::StrCat("the parameters of ", Quoted(rule.name)));
      };
      if (builder_.full()) break;
      auto part = SchemaPart::Parse(json_, rule.parameters.empty() ? "{}" : rule.parameters, budget_);
      if (!part.ok()) return named(part.status());
      const NodeId begin = builder_.NewNode(), end = builder_.NewNode();
      builder_.Join(call, begin);
      const NodeId arguments = AddSpelled(begin, BeforeArguments(rule));
      const auto add_spelled = [&](NodeId from, absl::string_view text) { return AddSpelled(from, text); };
      SchemaNetwork& network = (*part)->network();
      const absl::Status added = spec_.tags ? network.AddArguments(*spec_.tags, add_spelled, arguments, end)
                                            : network.Add(/*only_objects=*/true, arguments, end);
      if (!added.ok()) return named(added);
      builder_.Join(AddSpelled(end, absl::StrCat(IsPlain(rule) ? "}" : rule.after, spec_.after_call)), called);
      parts.emplace_back(arguments, *std::move(part));
    }
    TDOCK_ASSIGN_OR_RETURN(auto grammar, Finish());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (grammar->height(parts[i].first) != Network::kNoHeight) continue;
      return Annotate(parts[i].second->network().WhyNever(*grammar),
                      absl::StrCat("the parameters of ", Quoted(spec_.calls[i].name)));
    }
    return grammar;
  }

  static bool IsPlain(const CallRule& rule) { return rule.before.empty() && rule.after.empty(); }

  std::string BeforeArguments(const CallRule& rule) const {
    if (!IsPlain(rule)) return absl::StrCat(spec_.before_call, rule.before);
    return absl::StrCat(spec_.before_call, "{\"name\": ", JsonText(nlohmann::ordered_json(rule.name)),
                        ", \"arguments\": ");
  }

  // Where the text before some arguments is the beginning of another one, it would not be known what follows.
  absl::Status CheckBeginnings() const {
    std::vector<std::pair<std::string, const CallRule*>> beginnings;
    for (const CallRule& rule : spec_.calls) beginnings.emplace_back(BeforeArguments(rule), &rule);
    std::sort(beginnings.begin(), beginnings.end());
    for (size_t i = 1; i < beginnings.size(); ++i) {
      const auto& [text, rule] = beginnings[i - 1];
      if (text == beginnings[i].first || !absl::StartsWith(beginnings[i].first, text)) continue;
      return absl::InvalidArgumentError(absl::StrCat("a call of ", Quoted(rule->name), " begins as one of ",
                                                     Quoted(beginnings[i].second->name),
                                                     ": the text before the arguments must tell them apart"));
    }
    return absl::OkStatus();
  }

  // Literal text, in which special tokens are such. The longest of them that fits is meant.
  NodeId AddSpelled(NodeId from, absl::string_view text) {
    while (!text.empty() && !builder_.full()) {
      absl::string_view special;
      const auto found = special_tokens_.find(text[0]);
      if (found != special_tokens_.end()) {
        for (const absl::string_view one : found->second) {
          if (one.size() > special.size() && absl::StartsWith(text, one)) special = one;
        }
      }
      from = builder_.AddText(from, special.empty() ? text.substr(0, 1) : special, !special.empty());
      text.remove_prefix(std::max<size_t>(special.size(), 1));
    }
    return from;
  }

  const GrammarSpec& spec_;
  std::map<char, std::vector<absl::string_view>> special_tokens_;  // by their first bytes
  CompileBudget budget_;
  NetworkBuilder builder_;
  JsonNetwork json_{builder_};
  const NodeId start_ = builder_.NewNode();
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> CompileGrammar(const GrammarSpec& spec) {
  Compiled compiled = GrammarCompiler(spec).Compile();
  if (!absl::IsResourceExhausted(compiled.status())) return compiled;
  return absl::InvalidArgumentError(absl::StrCat("the grammar is too large: ", compiled.status().message()));
}

}  // namespace tdock::inference
