#include "text/jinja/repr.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "text/jinja/builder.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/node.h"

namespace tdock::jinja {
namespace {

constexpr int kDeepestObjects = 100;  // namespaces that hold namespaces

// Writes the spans of a string that `escape` leaves as they are, and its escapes, with the source of the character.
template <class Escape>
void AppendEscaped(const Text& text, const Escape& escape, TextBuilder& out) {
  const absl::string_view bytes = text.bytes();
  size_t plain = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = CharacterAt(bytes, at);
    const std::string escaped = escape(c.code);
    if (!escaped.empty()) {
      out.Append(text, plain, at);
      out.Append(escaped, text.SourceAt(at));
      plain = at + c.bytes;
    }
    at += c.bytes;
  }
  out.Append(text, plain, bytes.size());
}

std::string NumericEscape(char32_t code) {
  const auto number = static_cast<uint32_t>(code);
  if (code < 0x100) return absl::StrFormat("\\x%02x", number);
  if (code < 0x10000) return absl::StrFormat("\\u%04x", number);
  return absl::StrFormat("\\U%08x", number);
}

void AppendReprOfText(const Text& text, TextBuilder& out) {
  const absl::string_view bytes = text.bytes();
  const char quote =
      bytes.find('\'') != absl::string_view::npos && bytes.find('"') == absl::string_view::npos ? '"' : '\'';
  const absl::string_view quoted(&quote, 1);
  out.Append(quoted);
  const auto escape = [&](char32_t code) -> std::string {
    if (code >= 0x20 && code < 0x7F && code != '\\' && code != static_cast<char32_t>(quote)) return "";
    if (code == '\\' || code == static_cast<char32_t>(quote)) return std::string("\\") + static_cast<char>(code);
    if (code == '\n') return "\\n";
    if (code == '\r') return "\\r";
    if (code == '\t') return "\\t";
    return IsPrintable(code) ? "" : NumericEscape(code);
  };
  AppendEscaped(text, escape, out);
  out.Append(quoted);
}

class ReprWriter {
 public:
  explicit ReprWriter(Machine& machine) : machine_(machine), out_(machine.meter()) {}
  Text Take() { return out_.Take(); }

  absl::Status Write(const Value& value) {
    if (!machine_.meter().Spend(1) || !out_.ok()) return machine_.meter().status();
    switch (value.kind()) {
      case Value::Kind::kUndefined:
      case Value::Kind::kMissing:
        out_.Append("Undefined");
        break;
      case Value::Kind::kNone:
        out_.Append("None");
        break;
      case Value::Kind::kBool:
        out_.Append(value.AsBool() ? "True" : "False");
        break;
      case Value::Kind::kInt:
        out_.Append(absl::StrCat(value.AsInt()));
        break;
      case Value::Kind::kUint:
        out_.Append(absl::StrCat(value.AsUint()));
        break;
      case Value::Kind::kFloat:
        out_.Append(FloatRepr(value.AsFloat()));
        break;
      case Value::Kind::kText:
        if (value.is_markup()) out_.Append("Markup(");
        AppendReprOfText(value.AsText(), out_);
        if (value.is_markup()) out_.Append(")");
        break;
      case Value::Kind::kList:
        return Items(value.AsItems(), "[", "]");
      case Value::Kind::kTuple:
        return Items(value.AsItems(), "(", value.AsItems().size() == 1 ? ",)" : ")");
      case Value::Kind::kDict:
        return Pairs(value.AsDict().pairs);
      case Value::Kind::kObject:
        return WriteObject(value);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Items(const Value::Items& items, absl::string_view open, absl::string_view close) {
    out_.Append(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(", ");
      TDOCK_RETURN_IF_ERROR(Write(items[i]));
    }
    out_.Append(close);
    return absl::OkStatus();
  }

  absl::Status Pairs(const Value::Pairs& pairs) {
    out_.Append("{");
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) out_.Append(", ");
      TDOCK_RETURN_IF_ERROR(Write(pairs[i].first));
      out_.Append(": ");
      TDOCK_RETURN_IF_ERROR(Write(pairs[i].second));
    }
    out_.Append("}");
    return absl::OkStatus();
  }

  absl::Status WriteView(const DictView& view) {
    constexpr absl::string_view kNames[] = {"dict_keys(", "dict_values(", "dict_items("};
    out_.Append(kNames[static_cast<size_t>(view.part)]);
    Value::Items items;
    for (size_t i = 0; i < view.dict.AsDict().pairs.size(); ++i) items.push_back(view.At(i, machine_.meter()));
    TDOCK_RETURN_IF_ERROR(Items(items, "[", "]"));
    out_.Append(")");
    return absl::OkStatus();
  }

  absl::Status WriteNamespace(const Namespace& space) {
    if (std::find(open_.begin(), open_.end(), &space) != open_.end()) {
      out_.Append("<Namespace {...}>");
      return absl::OkStatus();
    }
    if (open_.size() >= kDeepestObjects) {
      return absl::InvalidArgumentError(
          absl::StrCat("namespaces hold each other more than ", kDeepestObjects, " levels deep"));
    }
    open_.push_back(&space);
    out_.Append("<Namespace ");
    TDOCK_RETURN_IF_ERROR(Pairs(space.attributes));
    out_.Append(">");
    open_.pop_back();
    return absl::OkStatus();
  }

  absl::Status WriteObject(const Value& value) {
    Object& object = value.AsObject();
    switch (object.type()) {
      case Object::Type::kNamespace:
        return WriteNamespace(static_cast<const Namespace&>(object));
      case Object::Type::kDictView:
        return WriteView(static_cast<const DictView&>(object));
      case Object::Type::kRange: {
        const auto& range = static_cast<const RangeObject&>(object);
        out_.Append(absl::StrCat("range(", range.begin, ", ", range.stop));
        if (range.step != 1) out_.Append(absl::StrCat(", ", range.step));
        out_.Append(")");
        return absl::OkStatus();
      }
      case Object::Type::kMacro: {
        const auto& macro = static_cast<const Macro&>(object);
        if (macro.stmt.kind != Stmt::Kind::kMacro) {
          out_.Append("<Macro anonymous>");
          return absl::OkStatus();
        }
        out_.Append("<Macro ");
        AppendReprOfText(Text(macro.stmt.name), out_);
        out_.Append(">");
        return absl::OkStatus();
      }
      case Object::Type::kLoop: {
        auto& loop = static_cast<Loop&>(object);
        TDOCK_ASSIGN_OR_RETURN(const int64_t length, loop.Length(machine_));
        out_.Append(absl::StrCat("<LoopContext ", loop.index0 + 1, "/", length, ">"));
        return absl::OkStatus();
      }
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("a value of the type ", TypeName(value), " has no text; for its items, use the filter list"));
    }
  }

  Machine& machine_;
  TextBuilder out_;
  std::vector<const Namespace*> open_;
};

std::string JsonEscape(char32_t code, bool ensure_ascii) {
  if (code == '"') return "\\\"";
  if (code == '\\') return "\\\\";
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (code == '\f') return "\\f";
  if (code == '\b') return "\\b";
  if (code >= 0x20 && (code < 0x7F || !ensure_ascii)) return "";
  const auto number = static_cast<uint32_t>(code);
  if (code < 0x10000) return absl::StrFormat("\\u%04x", number);
  return absl::StrFormat("\\u%04x\\u%04x", 0xD800 + ((number - 0x10000) >> 10), 0xDC00 + ((number - 0x10000) & 0x3FF));
}

std::string JsonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return FloatRepr(value);
}

class JsonWriter {
 public:
  JsonWriter(Machine& machine, const JsonForm& form) : machine_(machine), form_(form), out_(machine.meter()) {}
  Text Take() { return out_.Take(); }

  absl::Status Write(const Value& value) {
    if (!machine_.meter().Spend(1) || !out_.ok()) return machine_.meter().status();
    switch (value.kind()) {
      case Value::Kind::kText:
        AppendString(value.AsText());
        return absl::OkStatus();
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        return WriteList(value.AsItems());
      case Value::Kind::kDict:
        return WriteDict(value.AsDict().pairs);
      default:
        break;
    }
    TDOCK_ASSIGN_OR_RETURN(const std::string scalar, Scalar(value));
    out_.Append(scalar);
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kNone:
        return "null";
      case Value::Kind::kBool:
        return value.AsBool() ? "true" : "false";
      case Value::Kind::kInt:
        return absl::StrCat(value.AsInt());
      case Value::Kind::kUint:
        return absl::StrCat(value.AsUint());
      case Value::Kind::kFloat:
        return JsonFloat(value.AsFloat());
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("a value of the type ", TypeName(value), " cannot be written as JSON"));
    }
  }

  void AppendString(const Text& text) {
    out_.Append("\"");
    AppendEscaped(
        text, [&](char32_t code) { return JsonEscape(code, form_.ensure_ascii); }, out_);
    out_.Append("\"");
  }

  void NewLine() {
    if (!form_.indent) return;
    out_.Append("\n");
    for (int i = 0; i < level_ && out_.ok(); ++i) out_.Append(*form_.indent);
  }

  absl::Status WriteList(const Value::Items& items) {
    out_.Append("[");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(form_.item_separator);
      NewLine();
      TDOCK_RETURN_IF_ERROR(Write(items[i]));
    }
    --level_;
    if (!items.empty()) NewLine();
    out_.Append("]");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<const Value::Pairs::value_type*>> Ordered(const Value::Pairs& pairs) {
    std::vector<const Value::Pairs::value_type*> ordered;
    for (const auto& pair : pairs) ordered.push_back(&pair);
    if (!form_.sort_keys) return ordered;
    absl::Status status;
    std::stable_sort(ordered.begin(), ordered.end(), [&](const auto* a, const auto* b) {
      if (!status.ok()) return false;
      const auto order = Compare(a->first, b->first, machine_.meter());
      status.Update(order.status());
      return order.ok() && *order && **order < 0;
    });
    TDOCK_RETURN_IF_ERROR(status);
    return ordered;
  }

  absl::Status WriteDict(const Value::Pairs& pairs) {
    TDOCK_ASSIGN_OR_RETURN(const auto ordered, Ordered(pairs));
    out_.Append("{");
    ++level_;
    for (size_t i = 0; i < ordered.size(); ++i) {
      if (i > 0) out_.Append(form_.item_separator);
      NewLine();
      const Value& key = ordered[i]->first;
      if (key.is_text()) {
        AppendString(key.AsText());
      } else {
        TDOCK_ASSIGN_OR_RETURN(const std::string scalar, Scalar(key));
        out_.Append(absl::StrCat("\"", scalar, "\""));
      }
      out_.Append(form_.key_separator);
      TDOCK_RETURN_IF_ERROR(Write(ordered[i]->second));
    }
    --level_;
    if (!pairs.empty()) NewLine();
    out_.Append("}");
    return absl::OkStatus();
  }

  Machine& machine_;
  const JsonForm& form_;
  TextBuilder out_;
  int level_ = 0;
};

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const absl::string_view shortest(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* const digits_of_exponent = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, written.ptr, exponent);
  if (exponent < -4 || exponent >= 16) {
    return absl::StrFormat("%se%c%02d", shortest.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

absl::StatusOr<Text> Str(Machine& machine, const Value& value) {
  if (value.is_text()) return value.AsText();
  if (value.is_undefined()) return Text();
  return Repr(machine, value);
}

absl::StatusOr<Text> Repr(Machine& machine, const Value& value) {
  ReprWriter writer(machine);
  TDOCK_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

absl::StatusOr<Text> ToJson(Machine& machine, const Value& value, const JsonForm& form) {
  JsonWriter writer(machine, form);
  TDOCK_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace tdock::jinja
