// A template as a tree, and where its variables are kept. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct Filter;     // filters.h
struct Predicate;  // predicates.h

// A variable: the frame that is `hops` functions out, and its place in there.
struct Slot {
  int32_t hops = 0;
  int32_t index = -1;
};

enum class Operator : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kConstant,
    kName,                  // also as a target of an assignment
    kAttributeOfNamespace,  // as a target: `name`.`attribute`
    kTuple,
    kList,
    kDict,         // keys and values in turn
    kConditional,  // test, then, else or null
    kOr,
    kAnd,
    kNot,
    kCompare,  // the first, and for each of `operators` one more
    kConcat,
    kBinary,
    kNegative,
    kPositive,
    kAttribute,
    kItem,    // of what, index
    kSlice,   // begin, end and step, each may be null; only as the index of kItem
    kCall,    // callee, arguments
    kFilter,  // input, null where it is a block; arguments
    kTest     // input, arguments
  };

  Kind kind;
  int32_t line;
  int32_t height = 1;  // of the tree
  Value constant;      // also the name of an attribute
  std::string name;    // of a variable, an attribute, a filter, a test
  std::vector<ExprPtr> parts;
  std::vector<Operator> operators;
  std::vector<std::pair<Value, ExprPtr>> keywords;  // of a call, a filter, a test
  ExprPtr star, star_star;                          // *arguments, **arguments
  Slot slot;                                        // of kName, kAttributeOfNamespace
  const Filter* filter = nullptr;                   // null: there is none of this name
  const Predicate* predicate = nullptr;
};

// How a variable of a block gets its value when the block is entered.
struct Load {
  enum class Kind : uint8_t { kExternal, kAlias, kUnset, kParameter };
  Kind kind;
  Slot target;
  Slot source;           // of kAlias
  int32_t external = 0;  // of kExternal: the number of the name in Program::externals
};

// Variables that a block adds to those around it.
struct Scope {
  std::vector<Load> loads;
};

// What has a frame of its own.
struct Function {
  int32_t slots = 0;
  bool is_captured = false;  // functions inside of it may see its frame after it has returned
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Branch {
  ExprPtr test;
  Body body;
  int32_t line;
};

struct Stmt {
  enum class Kind : uint8_t {
    kOutput,     // parts
    kFor,        // target, value, test or null
    kIf,         // branches; body is that of `else`
    kSet,        // target, value
    kSetBlock,   // target, value is a filter or null
    kMacro,      // parts are the parameters
    kCallBlock,  // parts are the parameters, value the call
    kGeneration,
    kFilterBlock,  // value is the filter
    kWith,         // parts are targets, values
    kScope,
    kBreak,
    kContinue
  };

  Kind kind;
  int32_t line;
  std::string name;  // of a macro
  ExprPtr target, value, test;
  std::vector<ExprPtr> parts;
  std::vector<ExprPtr> values;  // of kWith; of macros: the defaults of the last parameters
  std::vector<Branch> branches;
  Body body, otherwise;
  bool is_recursive = false;

  // Found by scopes.h.
  Scope scope, test_scope, else_scope;
  Function function, test_function;                // of macros, calls, recursive loops; of the test of a loop
  Slot slot;                                       // of a macro, and of "loop" where the body mentions it
  Slot caller, keyword_arguments, more_arguments;  // of macros that mention them
  std::vector<Slot> test_targets;                  // in order of the names in the target
};

struct Program {
  Limits limits;
  Body body;
  Scope scope;
  Function function;
  std::vector<std::string> externals;  // names of variables from outside
  bool marks_generation = false;
};

}  // namespace tdock::jinja
