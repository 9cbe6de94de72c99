// A process's configuration: one plain struct, each field registered once with its name, help, unit
// and range; read from a YAML file, the environment and the command line.
//
//   RouterConfig config;
//   Schema schema("tandem-router", "Places requests on prefill and decode nodes.");
//   schema.Add("grpc", &config.grpc, "Address the gRPC server listens on; port 0 picks one.");
//   schema.Add("queue-limit", &config.queue_limit, "Requests that may wait.",
//              {.min = 1, .max = 100000, .unit = "requests", .group = "Admission"});
//   ASSIGN_OR_RETURN(const Parsed parsed, schema.Parse({.args = args, .env = Environment()}));
//
// Precedence: default < file (`--config FILE`) < environment < flag. A field `queue-limit` of
// `tandem-router` is the YAML key queue-limit (or queue_limit), the variable
// TANDEM_ROUTER_QUEUE_LIMIT and the flag --queue-limit. If a flag is given twice, the last value
// counts.
//
// A process that starts others embeds their schemas, so each field is described once:
//
//   node::RegisterNodeConfig(node_schema, up.node);
//   up_schema.Embed(node_schema, {.except = {"id", "routers"}});
//
// Thread safety: none; used before threads start. Owner: main. The schema writes through the
// pointers it was given: the config struct must outlive it.
// Errors: kInvalidArgument naming the key, where it came from, what was expected, and for unknown
// keys the nearest known one; kNotFound for a file that cannot be read. After an error the struct's
// contents are unspecified.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/config/value.h"

namespace tandem::config {

// The most fields of one schema. Fields of an embedded schema count in that schema, not here.
inline constexpr size_t kMaxFields = 64;

// Limits and documentation of one field; every member is optional.
template <typename T>
struct FieldOptions {
  std::optional<T> min;              // inclusive; for ordered types
  std::optional<T> max;              // inclusive; for ordered types
  bool min_excluded = false;         // values must be above `min`
  std::string unit;                  // "tokens", "requests/s"; durations and bytes carry their own
  std::string group;                 // heading in --help
  std::vector<std::string> choices;  // if not empty, the only texts accepted
  bool required = false;             // must be given by file, environment or flag
  bool secret = false;               // PrintEffective hides the value
  // What the types above cannot say; the message follows "expected ".
  std::function<absl::Status(const T&)> check;
  // Completes an accepted value, e.g. CompleteAddress a bare port.
  std::function<T(const T&)> normalise;
};

// Where a field's value came from.
enum class Origin { kDefault, kFile, kEnvironment, kFlag };

// What Parse reads from.
struct Inputs {
  std::vector<std::string> args;           // without the program's name
  std::map<std::string, std::string> env;  // see Environment()
  std::string file;                        // read unless the environment or a flag names another
};

// What Parse found besides field values.
struct Parsed {
  bool help_requested = false;     // --help or -h: nothing else was checked
  bool version_requested = false;  // --version: nothing else was checked
  bool print_requested = false;    // --print-config
  std::vector<std::string> positionals;
};

class Schema {
 public:
  // A registered field, type erased. Read by the help, markdown and completion writers.
  struct Field {
    std::string name;          // kebab-case
    std::string help;          // one or more sentences
    std::string type;          // "duration", "bytes", ...
    std::string expected;      // "an integer from 1 to 100000"
    std::string default_text;  // before anything was parsed
    std::string range;         // "1..100000", "" when unlimited
    std::string unit;
    std::string group;
    std::vector<std::string> choices;
    bool is_bool = false;
    bool is_list = false;
    bool required = false;
    bool secret = false;
    Origin origin = Origin::kDefault;
    std::string origin_detail;  // "router.yaml:3", "TANDEM_ROUTER_GRPC"
    std::function<absl::Status(absl::string_view)> set;
    std::function<std::string()> get;
  };

  // `program`: "tandem-router", or "tandem up" for a subcommand. `purpose`: one line for --help.
  Schema(std::string program, std::string purpose)
      : program_(std::move(program)), purpose_(std::move(purpose)) {}

  // Registers a field whose default is what `*value` holds now.
  // REQUIRES: `name` is kebab-case and new; at most kMaxFields fields; the default is in range.
  template <typename T>
  void Add(absl::string_view name, T* value, absl::string_view help,
           const std::type_identity_t<FieldOptions<T>>& options = {});

  // Registers an enumeration by its values' names.
  template <typename E>
  void AddEnum(absl::string_view name, E* value, absl::string_view help,
               std::vector<std::pair<std::string, E>> names, absl::string_view group = "");

  // Which fields of another schema Embed leaves out.
  struct Embedding {
    std::vector<std::string> except;  // names
  };

  // Adds the fields of `other` with their names, help, groups, defaults and checks. They set what
  // `other` sets: its config struct must outlive this schema; `other` itself need not. A field
  // whose name this schema already has keeps its description: call Add before Embed to replace an
  // embedded field.
  // REQUIRES: `other` has every name in `which.except`.
  void Embed(const Schema& other, const Embedding& which);

  // Accepts up to `count_max` arguments that are not flags. `what` names them in --help.
  void AllowPositionals(std::string what, size_t count_max) {
    positional_name_ = std::move(what);
    positional_count_max_ = count_max;
  }

  // Ignores the environment variables of `command`, a subcommand of this one ("tandem bench serve"
  // of "tandem bench").
  void LeaveEnvironmentOf(absl::string_view command) {
    below_.push_back(EnvironmentPrefixOf(command));
  }

  absl::StatusOr<Parsed> Parse(const Inputs& inputs);

  const std::string& program() const { return program_; }
  const std::string& purpose() const { return purpose_; }
  const std::vector<Field>& fields() const { return fields_; }
  // TANDEM_ROUTER_ for "tandem-router", TANDEM_UP_ for "tandem up".
  std::string EnvironmentPrefix() const { return EnvironmentPrefixOf(program_); }
  std::string EnvironmentName(const Field& field) const;

  // The --help text, wrapped at 100 columns, fields under their groups' headings.
  std::string Help() const;
  // `name=value (default | file x.yaml:3 | env VAR | flag)`, one field a line.
  std::string PrintEffective() const;
  // The same for the fields whose values are not the defaults, in one line: `a=1 (flag), b=2 (env
  // TANDEM_ROUTER_B)`; empty when none differs.
  std::string PrintChanged() const;
  // A table for docs/CONFIG.md.
  std::string Markdown() const;

 private:
  // A flag from the command line. Parse applies flags after the file and the environment.
  struct PendingFlag {
    Field* field;
    std::string text;
    std::string detail;
  };
  struct CommandLine {
    Parsed parsed;
    std::string file;
    std::vector<PendingFlag> flags;
  };

  static std::string EnvironmentPrefixOf(absl::string_view program);
  static std::string PrintField(const Field& field);
  void Register(Field field);
  bool Has(absl::string_view name) const;
  Field* Find(absl::string_view normalised_name);
  absl::Status Assign(Field& field, absl::string_view text, Origin origin,
                      const std::string& detail);
  absl::Status ApplyFile(const std::string& path);  // yaml_source.cc
  absl::Status ApplyEnvironment(const std::map<std::string, std::string>& env);
  absl::StatusOr<CommandLine> ReadArguments(const std::vector<std::string>& args);
  absl::Status ReadFlag(const std::vector<std::string>& args, size_t* index, CommandLine* line);
  std::vector<std::string> FieldNames() const;
  absl::Status CheckRequired() const;

  std::string program_;
  std::string purpose_;
  std::string positional_name_;
  size_t positional_count_max_ = 0;
  std::vector<std::string> below_;  // prefixes
  std::vector<Field> fields_;
  size_t embedded_count_ = 0;  // of fields_, those that come from other schemas
};

// This process's environment. The only reader of it.
std::map<std::string, std::string> Environment();

// The candidate with the fewest edits to `name`; empty when none is near.
std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates);

// ---------------------------------------------------------------------------------------------

namespace internal {

template <typename T>
inline constexpr bool kIsRanged = !std::is_same_v<T, bool> && !std::is_same_v<T, std::string> &&
                                  !std::is_same_v<T, std::vector<std::string>>;

// "expected" phrase, e.g. "an integer from 1 to 8", "one of cpu, hash".
std::string ExpectedPhrase(absl::string_view type_phrase, const std::string& min,
                           const std::string& max, const std::vector<std::string>& choices,
                           bool min_excluded = false);
std::string RangeText(const std::string& min, const std::string& max, bool min_excluded = false);
// Whether it is an integer of any size, as decimal digits with or without a sign.
bool IsInteger(absl::string_view text);
bool IsChoice(absl::string_view text, const std::vector<std::string>& choices);

// The range and the custom check; the error's message follows "expected ".
template <typename T>
absl::Status CheckValue(const T& value, const FieldOptions<T>& options,
                        const std::string& expected) {
  if constexpr (kIsRanged<T>) {
    // The comparisons are negated so that a NaN is out of every range.
    const bool at_min = options.min && *options.min == value && !options.min_excluded;
    if ((options.min && !(*options.min < value || at_min)) ||
        (options.max && !(value < *options.max || value == *options.max))) {
      return absl::InvalidArgumentError(expected);
    }
  }
  return options.check ? options.check(value) : absl::OkStatus();
}

// The "expected" phrase for a text that is no value of the type. Of an integer that is too large
// for the type it names the type's limits, where the field has no closer ones.
template <typename T>
std::string ExpectedInsteadOf(absl::string_view text, const FieldOptions<T>& options,
                              const std::string& expected) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    using Limits = std::numeric_limits<T>;
    if (options.choices.empty() && IsInteger(text)) {
      return ExpectedPhrase(ValueTraits<T>::Expected(),
                            ValueTraits<T>::Format(options.min.value_or(Limits::min())),
                            ValueTraits<T>::Format(options.max.value_or(Limits::max())), {},
                            options.min.has_value() && options.min_excluded);
    }
  }
  return expected;
}

}  // namespace internal

template <typename T>
void Schema::Add(absl::string_view name, T* value, absl::string_view help,
                 const std::type_identity_t<FieldOptions<T>>& options) {
  using Traits = ValueTraits<T>;
  const std::string min = options.min ? Traits::Format(*options.min) : "";
  const std::string max = options.max ? Traits::Format(*options.max) : "";
  Field field;
  field.name = std::string(name);
  field.help = std::string(help);
  field.type = std::string(Traits::Name());
  field.expected =
      internal::ExpectedPhrase(Traits::Expected(), min, max, options.choices, options.min_excluded);
  field.default_text = Traits::Format(*value);
  field.range = internal::RangeText(min, max, options.min_excluded);
  field.unit = options.unit;
  field.group = options.group;
  field.choices = options.choices;
  field.is_bool = std::is_same_v<T, bool>;
  field.is_list = std::is_same_v<T, std::vector<std::string>>;
  field.required = options.required;
  field.secret = options.secret;
  field.get = [value] { return Traits::Format(*value); };
  field.set = [value, options, expected = field.expected](absl::string_view text) {
    absl::StatusOr<T> parsed = Traits::Parse(text);
    if (!parsed.ok())
      return absl::InvalidArgumentError(internal::ExpectedInsteadOf<T>(text, options, expected));
    if (!internal::IsChoice(text, options.choices)) return absl::InvalidArgumentError(expected);
    absl::Status status = internal::CheckValue<T>(*parsed, options, expected);
    if (status.ok()) *value = options.normalise ? options.normalise(*parsed) : *parsed;
    return status;
  };
  FieldOptions<T> range_only = options;
  range_only.check = nullptr;
  TANDEM_CHECK(options.required || internal::CheckValue<T>(*value, range_only, "").ok(),
               "default of ", name, " is out of its range");
  Register(std::move(field));
}

template <typename E>
void Schema::AddEnum(absl::string_view name, E* value, absl::string_view help,
                     std::vector<std::pair<std::string, E>> names, absl::string_view group) {
  Field field;
  field.name = std::string(name);
  field.help = std::string(help);
  field.type = "choice";
  field.group = std::string(group);
  for (const auto& [text, unused] : names) field.choices.push_back(text);
  field.expected = internal::ExpectedPhrase("", "", "", field.choices);
  field.get = [value, names] {
    for (const auto& [text, candidate] : names) {
      if (candidate == *value) return text;
    }
    return std::string("?");
  };
  field.set = [value, names, expected = field.expected](absl::string_view text) {
    for (const auto& [candidate, parsed] : names) {
      if (candidate != text) continue;
      *value = parsed;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(expected);
  };
  field.default_text = field.get();
  Register(std::move(field));
}

}  // namespace tandem::config
