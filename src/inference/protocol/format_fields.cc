#include "inference/protocol/ask_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

// Where a tool has its function: "tools[2].function".
struct ToolPlace {
  std::string tool, function;
};

// Nothing if it cannot be read; then the problem is there.
std::optional<Json> ReadFunction(const Json& tool, const ToolPlace& place, ToolForm form, Fields& fields) {
  const auto fail = [&](const std::string& where, absl::string_view why, absl::string_view code = "invalid_value") {
    fields.FailAt(where, why, code);
    return std::nullopt;
  };
  if (!tool.is_object()) return fail(place.tool, "must be an object");
  const auto type = tool.find("type");
  if (type == tool.end()) return fail(place.tool + ".type", "must be \"function\"");
  if (*type != "function")
    return fail(place.tool + ".type", "is not \"function\", and this server has no other tools", "unsupported_value");
  Json function = tool;
  function.erase("type");
  if (form == ToolForm::kNested) {
    const auto nested = tool.find("function");
    function = nested == tool.end() ? Json() : *nested;
  }
  if (!function.is_object()) return fail(place.function, "must be an object with the function's name");
  const auto name = function.find("name");
  if (name == function.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    return fail(place.function + ".name", "must be a name");
  }
  const auto parameters = function.find("parameters");
  if (parameters != function.end() && !parameters->is_null() && !parameters->is_object()) {
    return fail(place.function + ".parameters", "must be a JSON schema");
  }
  return function;
}

CallRule RuleOf(const Json& function) {
  const auto parameters = function.find("parameters");
  const bool is_given = parameters != function.end() && parameters->is_object();
  return {.name = function["name"].get<std::string>(), .parameters = is_given ? JsonText(*parameters) : ""};
}

struct Choice {
  bool calls = true, must_call = false;
  std::optional<std::string> name = {};  // of the only function that may be called
};

Choice ReadChoice(const Json& value, ToolForm form, Fields& fields) {
  if (value == "auto") return {};
  if (value == "none") return {.calls = false};
  if (value == "required") return {.must_call = true};
  const Json* named = &value;
  if (value.is_object() && value.value("type", Json()) == "function") {
    if (form == ToolForm::kNested && value.contains("function")) named = &value["function"];
    if (named->is_object() && named->contains("name") && (*named)["name"].is_string()) {
      return {.must_call = true, .name = (*named)["name"].get<std::string>()};
    }
  }
  fields.Fail(form == ToolForm::kNested
                  ? "must be auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": …}}"
                  : "must be auto, none, required, or {\"type\": \"function\", \"name\": …}",
              "unsupported_value");
  return {};
}

void SetGrammar(GrammarSpec spec, std::string field, Fields& fields, Ask& ask) {
  if (ask.grammar) {
    return fields.Fail(
        absl::StrCat("is given beside '", ask.grammar_field, "'; one of them says what answers are made of"));
  }
  ask.grammar = std::move(spec);
  ask.grammar_field = std::move(field);
}

GrammarSpec SchemaGrammar(const Json& schema) {
  return {.kind = GrammarSpec::Kind::kJsonSchema, .text = JsonText(schema)};
}

// {"name": …, "schema": {…}, "strict": …}.
void ReadNamedSchema(Fields inner, Fields& fields, Ask& ask) {
  inner.Ignore({"name", "description", "strict"});  // answers always are as the schema says
  const Json* const schema = inner.Take({"schema"});
  if (schema == nullptr || !schema->is_object()) {
    inner.FailFor("schema", schema == nullptr ? "is missing: what the answer is to be" : "must be a JSON schema");
  } else {
    SetGrammar(SchemaGrammar(*schema), inner.path(), fields, ask);
  }
  inner.Finish();
}

// "response_format", or "text.format" of /v1/responses, where the schema is not in an object of its own.
void ReadFormat(const Json& value, bool is_flat, Fields& fields, Ask& ask) {
  if (!value.is_object()) return fields.Fail("must be an object with a type");
  Fields inner = fields.In(value);
  const std::string type = inner.String({"type"}).value_or("");
  if (type == "json_object") {
    SetGrammar({.kind = GrammarSpec::Kind::kJsonObject}, fields.path(), fields, ask);
  } else if (type == "json_schema" && is_flat) {
    return ReadNamedSchema(std::move(inner), fields, ask);
  } else if (type == "json_schema") {
    const Json* const named = inner.Take({"json_schema"});
    if (named == nullptr || !named->is_object()) return inner.FailFor("json_schema", "must be an object with a schema");
    ReadNamedSchema(inner.In(*named), fields, ask);
  } else if (type != "text") {
    inner.FailFor("type", "must be text, json_object or json_schema", "unsupported_value");
  }
  inner.Finish();
}

// A schema as vLLM takes it: an object, or the text of one.
void ReadGuidedSchema(const Json& value, const AskLimits& limits, Fields& fields, Ask& ask) {
  if (value.is_object()) return SetGrammar(SchemaGrammar(value), fields.path(), fields, ask);
  if (!value.is_string()) return fields.Fail("must be a JSON schema, or the text of one");
  const auto& text = value.get_ref<const std::string&>();
  if (const auto parsed = ParseJsonObject(text, limits.max_depth); !parsed.ok()) {
    return fields.Fail(absl::StrCat("must be a JSON schema: ", parsed.status().message()));
  }
  SetGrammar({.kind = GrammarSpec::Kind::kJsonSchema, .text = text}, fields.path(), fields, ask);
}

void ReadChoices(const Json& value, const AskLimits& limits, Fields& fields, Ask& ask) {
  GrammarSpec spec{.kind = GrammarSpec::Kind::kChoices};
  if (!value.is_array() || value.empty() || std::cmp_greater(value.size(), limits.max_choices)) {
    return fields.Fail(absl::StrCat("must be a list of 1 to ", limits.max_choices, " texts"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_string() || value[i].get_ref<const std::string&>().empty()) {
      return fields.FailAt(absl::StrCat("[", i, "]"), "must be a text that is not empty");
    }
    spec.choices.push_back(value[i].get<std::string>());
  }
  SetGrammar(std::move(spec), fields.path(), fields, ask);
}

void ReadGuided(Fields& fields, const char* json, const char* regex, const char* choice, const AskLimits& limits,
                Ask& ask) {
  if (const Json* const schema = fields.Take({json})) ReadGuidedSchema(*schema, limits, fields, ask);
  if (const auto pattern = fields.String({regex})) {
    SetGrammar({.kind = GrammarSpec::Kind::kRegex, .text = *pattern}, fields.path(), fields, ask);
  }
  if (const Json* const choices = fields.Take({choice})) ReadChoices(*choices, limits, fields, ask);
}

constexpr DefaultField kStructuredDefaults[] = {
    {"disable_additional_properties", "false", "the schema says which names an object may have"},
    {"disable_any_whitespace", "false", "between tokens of JSON there are at most two blanks"},
    {"disable_fallback", "false", "there is one way to hold answers to a grammar"},
    {"disable_fallback", "true", ""},
    {"grammar", "null", "grammars are JSON schemas, regular expressions and choices"},
    {"structural_tag", "null", "grammars are JSON schemas, regular expressions and choices"},
    {"whitespace_pattern", "null", "between tokens of JSON there are at most two blanks"},
};

}  // namespace

void ReadTools(Fields& fields, ToolForm form, Ask& ask) {
  const Json* const tools = fields.Take({"tools"});
  Json nested = Json::array();
  std::vector<CallRule> rules;
  if (tools != nullptr) {
    if (!tools->is_array()) return fields.Fail("must be a list of functions");
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string place = absl::StrCat("[", i, "]");
      const std::string function_place = form == ToolForm::kNested ? place + ".function" : place;
      const auto function = ReadFunction((*tools)[i], {place, function_place}, form, fields);
      if (!function) return;
      rules.push_back(RuleOf(*function));
      if (form == ToolForm::kFlat) nested.push_back(Json{{"type", "function"}, {"function", *function}});
    }
    if (!tools->empty()) ask.context.tools = JsonText(form == ToolForm::kFlat ? nested : *tools);
  }
  const bool parallel = fields.Bool({"parallel_tool_calls"}).value_or(true);
  const Json* const value = fields.Take({"tool_choice"});
  const Choice choice = value == nullptr ? Choice{} : ReadChoice(*value, form, fields);
  if (!choice.calls) ask.context.tools.clear();
  if (choice.must_call) {
    if (rules.empty()) return fields.Fail("is for tools, and there are none");
    if (choice.name) {
      std::erase_if(rules, [&](const CallRule& rule) { return rule.name != *choice.name; });
      if (rules.empty()) return fields.Fail("names a function that is not among the tools");
    }
    GrammarSpec spec{.kind = GrammarSpec::Kind::kCalls, .calls = std::move(rules)};
    spec.one_call = choice.name.has_value() || !parallel;
    SetGrammar(std::move(spec), "tools", fields, ask);
  } else if (!parallel && !ask.context.tools.empty()) {
    fields.FailFor("parallel_tool_calls",
                   "is false, which is only kept where 'tool_choice' makes the model call a tool", "unsupported_value");
  }
}

void ReadFormats(Fields& fields, const AskLimits& limits, Ask& ask) {
  if (const Json* const format = fields.Take({"response_format"})) ReadFormat(*format, /*is_flat=*/false, fields, ask);
  ReadGuided(fields, "guided_json", "guided_regex", "guided_choice", limits, ask);
  const Json* const structured = fields.Take({"structured_outputs"});
  if (structured == nullptr) return;
  if (!structured->is_object()) return fields.Fail("must be an object");
  Fields inner = fields.In(*structured);
  ReadGuided(inner, "json", "regex", "choice", limits, ask);
  if (inner.Bool({"json_object"}).value_or(false)) {
    SetGrammar({.kind = GrammarSpec::Kind::kJsonObject}, inner.path(), inner, ask);
  }
  inner.RefuseOthers(kStructuredDefaults);
  inner.Finish();
}

void ReadTextFormat(Fields& fields, Ask& ask) {
  const Json* const text = fields.Take({"text"});
  if (text == nullptr) return;
  if (!text->is_object()) return fields.Fail("must be an object");
  Fields inner = fields.In(*text);
  if (const Json* const format = inner.Take({"format"})) ReadFormat(*format, /*is_flat=*/true, inner, ask);
  constexpr DefaultField kVerbosity[] = {{"verbosity", "\"medium\"", "the model has no such setting"}};
  inner.RefuseOthers(kVerbosity);
  inner.Finish();
}

}  // namespace tdock::inference
