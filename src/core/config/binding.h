// The kinds of values of keys: how each is parsed, shown and described. Internal to this module.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::config {

// A scalar as it was written.
struct Given {
  std::string text;
  bool quoted = false;  // and therefore text, even if it looks like a number
  bool null = false;    // nothing, or ~
};

// One key bound to one field. Not thread-safe.
class Binding {
 public:
  Binding(std::string key, std::string doc) : key_(std::move(key)), doc_(std::move(doc)) {}
  virtual ~Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  const std::string& key() const { return key_; }
  const std::string& doc() const { return doc_; }
  // The field as YAML when it was bound.
  const std::string& default_yaml() const { return default_yaml_; }
  void remember_default() { default_yaml_ = Yaml(); }

  // Sets the field, or returns false and leaves it unchanged if `given` is not what Expected() says.
  virtual bool Set(const Given& given) = 0;
  // The field as a YAML scalar.
  virtual std::string Yaml() const = 0;
  // What Set() takes, such as "integer ≥ 1".
  virtual std::string Expected() const = 0;
  // An addition to that for the value `given`, such as " in 64 bits"; often empty.
  virtual std::string Hint(const Given&) const { return ""; }

 private:
  const std::string key_;
  const std::string doc_;
  std::string default_yaml_;
};

class IntBinding final : public Binding {
 public:
  IntBinding(std::string key, std::string doc, int64_t* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void AtLeast(int64_t bound) { min_ = bound; }
  void AtMost(int64_t bound) { max_ = bound; }
  bool Set(const Given& given) override;
  std::string Yaml() const override;
  std::string Expected() const override;
  std::string Hint(const Given& given) const override;

 private:
  int64_t* const field_;
  int64_t min_ = std::numeric_limits<int64_t>::min();
  int64_t max_ = std::numeric_limits<int64_t>::max();
};

class FloatBinding final : public Binding {
 public:
  FloatBinding(std::string key, std::string doc, double* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void AtLeast(double bound) { min_ = bound, above_min_ = false; }
  void MoreThan(double bound) { min_ = bound, above_min_ = true; }
  void AtMost(double bound) { max_ = bound, below_max_ = false; }
  void LessThan(double bound) { max_ = bound, below_max_ = true; }
  bool Set(const Given& given) override;
  std::string Yaml() const override;
  std::string Expected() const override;

 private:
  double* const field_;
  double min_ = -std::numeric_limits<double>::infinity();
  double max_ = std::numeric_limits<double>::infinity();
  bool above_min_ = false;
  bool below_max_ = false;
};

class BoolBinding final : public Binding {
 public:
  BoolBinding(std::string key, std::string doc, bool* field) : Binding(std::move(key), std::move(doc)), field_(field) {}
  bool Set(const Given& given) override;
  std::string Yaml() const override { return *field_ ? "true" : "false"; }
  std::string Expected() const override { return "true or false"; }

 private:
  bool* const field_;
};

class StringBinding final : public Binding {
 public:
  StringBinding(std::string key, std::string doc, std::string* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void NotEmpty() { not_empty_ = true; }
  bool Set(const Given& given) override;
  std::string Yaml() const override;
  std::string Expected() const override { return not_empty_ ? "text, not empty" : "text"; }

 private:
  std::string* const field_;
  bool not_empty_ = false;
};

class ChoiceBinding final : public Binding {
 public:
  ChoiceBinding(std::string key, std::string doc, std::vector<std::string> names, std::function<void(size_t)> set,
                std::function<size_t()> get)
      : Binding(std::move(key), std::move(doc)), names_(std::move(names)), set_(std::move(set)), get_(std::move(get)) {}
  bool Set(const Given& given) override;
  std::string Yaml() const override;
  std::string Expected() const override;

 private:
  const std::vector<std::string> names_;
  const std::function<void(size_t)> set_;
  const std::function<size_t()> get_;
};

}  // namespace tdock::config
