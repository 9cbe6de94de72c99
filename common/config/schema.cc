#include "common/config/schema.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace tandem::config {
namespace {

bool IsKebabCase(absl::string_view name) {
  return !name.empty() && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

std::string Normalise(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

// Kubernetes puts TANDEM_ROUTER_SERVICE_HOST, TANDEM_ROUTER_PORT_50051_TCP_ADDR and similar
// variables into the environment of every pod beside a service named tandem-router.
bool IsServiceLink(absl::string_view suffix, absl::string_view value) {
  if (absl::StartsWith(suffix, "SERVICE_HOST") || absl::StartsWith(suffix, "SERVICE_PORT")) {
    return true;
  }
  const bool is_url = absl::StartsWith(value, "tcp://") || absl::StartsWith(value, "udp://");
  if (suffix == "PORT") return is_url;
  if (!absl::StartsWith(suffix, "PORT_")) return false;
  suffix.remove_prefix(5);
  const size_t digit_count = suffix.find_first_not_of("0123456789");
  if (digit_count == 0 || digit_count == absl::string_view::npos) return false;
  suffix.remove_prefix(digit_count);
  return absl::StartsWith(suffix, "_TCP") || absl::StartsWith(suffix, "_UDP");
}

std::string Suggestion(const std::string& nearest, absl::string_view prefix) {
  if (nearest.empty()) return "; --help lists what is known";
  return absl::StrCat("; nearest known: ", prefix, nearest);
}

std::string OriginText(Origin origin, const std::string& detail) {
  switch (origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kFile:
      return absl::StrCat("file ", detail);
    case Origin::kEnvironment:
      return absl::StrCat("env ", detail);
    case Origin::kFlag:
      return "flag";
  }
  return "";
}

}  // namespace

namespace internal {

std::string RangeText(const std::string& min, const std::string& max, bool min_excluded) {
  if (min.empty() && max.empty()) return "";
  if (min_excluded && !min.empty())
    return absl::StrCat("above ", min, max.empty() ? "" : ", at most ", max);
  if (max.empty()) return absl::StrCat("at least ", min);
  if (min.empty()) return absl::StrCat("at most ", max);
  return absl::StrCat("from ", min, " to ", max);
}

std::string ExpectedPhrase(absl::string_view type_phrase, const std::string& min,
                           const std::string& max, const std::vector<std::string>& choices,
                           bool min_excluded) {
  if (!choices.empty()) return absl::StrCat("one of ", absl::StrJoin(choices, ", "));
  const std::string range = RangeText(min, max, min_excluded);
  return absl::StrCat(type_phrase, range.empty() ? "" : ", ", range);
}

bool IsInteger(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

bool IsChoice(absl::string_view text, const std::vector<std::string>& choices) {
  return choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end();
}

}  // namespace internal

void Schema::Register(Field field) {
  TANDEM_CHECK(IsKebabCase(field.name), "configuration field ", field.name);
  TANDEM_CHECK(Find(field.name) == nullptr, "configuration field ", field.name, " added twice");
  TANDEM_CHECK(fields_.size() - embedded_count_ < kMaxFields, program_, " has more fields than ",
               kMaxFields);
  for (const char* reserved : {"config", "help", "version", "print-config"}) {
    TANDEM_CHECK(field.name != reserved, "configuration field ", field.name, " is reserved");
  }
  fields_.push_back(std::move(field));
}

void Schema::Embed(const Schema& other, const Embedding& which) {
  for (const std::string& name : which.except) {
    TANDEM_CHECK(other.Has(name), other.program_, " has no field ", name);
  }
  for (const Field& field : other.fields_) {
    const auto& except = which.except;
    if (Has(field.name) || std::find(except.begin(), except.end(), field.name) != except.end()) {
      continue;
    }
    fields_.push_back(field);
    ++embedded_count_;
  }
}

bool Schema::Has(absl::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [name](const Field& field) { return field.name == name; });
}

Schema::Field* Schema::Find(absl::string_view normalised_name) {
  for (Field& field : fields_) {
    if (field.name == normalised_name) return &field;
  }
  return nullptr;
}

std::vector<std::string> Schema::FieldNames() const {
  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.name);
  return names;
}

std::string Schema::EnvironmentPrefixOf(absl::string_view program) {
  return absl::StrCat(absl::AsciiStrToUpper(absl::StrReplaceAll(program, {{"-", "_"}, {" ", "_"}})),
                      "_");
}

std::string Schema::EnvironmentName(const Field& field) const {
  return absl::StrCat(EnvironmentPrefix(),
                      absl::AsciiStrToUpper(absl::StrReplaceAll(field.name, {{"-", "_"}})));
}

absl::Status Schema::Assign(Field& field, absl::string_view text, Origin origin,
                            const std::string& detail) {
  const absl::Status status = field.set(text);
  if (!status.ok()) {
    const std::string shown = field.secret ? "(hidden)" : absl::StrCat("'", text, "'");
    const std::string source =
        origin == Origin::kFlag ? absl::StrCat("flag, ", detail) : OriginText(origin, detail);
    return absl::InvalidArgumentError(absl::StrCat(field.name, ": value ", shown, " (", source,
                                                   "): expected ", status.message()));
  }
  field.origin = origin;
  field.origin_detail = detail;
  return absl::OkStatus();
}

absl::Status Schema::ApplyEnvironment(const std::map<std::string, std::string>& env) {
  const std::string prefix = EnvironmentPrefix();
  // A one-word program's prefix, TANDEM_, is also the start of every other process's prefix.
  const bool owns_prefix = std::count(prefix.begin(), prefix.end(), '_') > 1;
  for (const auto& [name, value] : env) {
    if (!absl::StartsWith(name, prefix) || name == prefix + "CONFIG") continue;
    if (std::any_of(below_.begin(), below_.end(), [&name = name](const std::string& below) {
          return absl::StartsWith(name, below);
        })) {
      continue;
    }
    const std::string suffix = name.substr(prefix.size());
    Field* field = nullptr;
    for (Field& candidate : fields_) {
      if (EnvironmentName(candidate) == name) field = &candidate;
    }
    if (field != nullptr) {
      RETURN_IF_ERROR(Assign(*field, value, Origin::kEnvironment, name));
    } else if (owns_prefix && !IsServiceLink(suffix, value)) {
      const std::string bare = Nearest(Normalise(absl::AsciiStrToLower(suffix)), FieldNames());
      const std::string nearest = bare.empty() ? "" : EnvironmentName(*Find(bare));
      return absl::InvalidArgumentError(
          absl::StrCat("unknown environment variable ", name, Suggestion(nearest, "")));
    }
  }
  return absl::OkStatus();
}

absl::Status Schema::ReadFlag(const std::vector<std::string>& args, size_t* index,
                              CommandLine* line) {
  const std::string detail = absl::StrCat("argument ", *index + 1);
  const absl::string_view whole = args[*index];
  absl::string_view body = whole.substr(absl::StartsWith(whole, "--") ? 2 : 1);
  const size_t equals = body.find('=');
  const bool has_value = equals != absl::string_view::npos;
  const std::string name = Normalise(body.substr(0, equals));
  std::string text = has_value ? std::string(body.substr(equals + 1)) : "";
  Field* field = absl::StartsWith(whole, "--") ? Find(name) : nullptr;
  if (field != nullptr && field->is_bool && !has_value) {
    line->flags.push_back({field, "true", detail});
    return absl::OkStatus();
  }
  if (field == nullptr && absl::StartsWith(name, "no-") && !has_value) {
    field = Find(name.substr(3));
    if (field != nullptr && field->is_bool) {
      line->flags.push_back({field, "false", detail});
      return absl::OkStatus();
    }
    field = nullptr;
  }
  if (field == nullptr && name != "config") {
    std::vector<std::string> known = FieldNames();
    for (const Field& candidate : fields_) {
      if (candidate.is_bool) known.push_back(absl::StrCat("no-", candidate.name));
    }
    for (const char* built_in : {"config", "help", "version", "print-config"}) {
      known.push_back(built_in);
    }
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ",
                                                   whole.substr(0, whole.find('=')), " (", detail,
                                                   ")", Suggestion(Nearest(name, known), "--")));
  }
  if (!has_value) {
    if (*index + 1 >= args.size() || absl::StartsWith(args[*index + 1], "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", name, " (", detail, "): expected a value after it, ",
                       field == nullptr ? "the path of a YAML file" : field->expected));
    }
    text = args[++*index];
  }
  if (field == nullptr) {
    line->file = text;
  } else {
    line->flags.push_back({field, text, detail});
  }
  return absl::OkStatus();
}

absl::StatusOr<Schema::CommandLine> Schema::ReadArguments(const std::vector<std::string>& args) {
  CommandLine line;
  bool flags_ended = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (flags_ended || arg == "-" || !absl::StartsWith(arg, "-")) {
      if (line.parsed.positionals.size() >= positional_count_max_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "unexpected argument '", arg, "' (argument ", i + 1, "): expected ",
            positional_count_max_ == 0
                ? "flags only"
                : absl::StrCat("at most ", positional_count_max_, " ", positional_name_)));
      }
      line.parsed.positionals.push_back(arg);
    } else if (arg == "--") {
      flags_ended = true;
    } else if (arg == "--help" || arg == "-h") {
      line.parsed.help_requested = true;
      return line;
    } else if (arg == "--version") {
      line.parsed.version_requested = true;
      return line;
    } else if (arg == "--print-config") {
      line.parsed.print_requested = true;
    } else {
      RETURN_IF_ERROR(ReadFlag(args, &i, &line));
    }
  }
  return line;
}

absl::Status Schema::CheckRequired() const {
  for (const Field& field : fields_) {
    if (field.required && field.origin == Origin::kDefault) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.name, " is not set: expected ", field.expected, " from --", field.name,
                       ", ", EnvironmentName(field), " or a configuration file"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Parsed> Schema::Parse(const Inputs& inputs) {
  ASSIGN_OR_RETURN(CommandLine line, ReadArguments(inputs.args));
  if (line.parsed.help_requested || line.parsed.version_requested) return line.parsed;
  std::string file = inputs.file;
  const auto from_env = inputs.env.find(EnvironmentPrefix() + "CONFIG");
  if (from_env != inputs.env.end()) file = from_env->second;
  if (!line.file.empty()) file = line.file;
  if (!file.empty()) RETURN_IF_ERROR(ApplyFile(file));
  RETURN_IF_ERROR(ApplyEnvironment(inputs.env));
  for (const PendingFlag& flag : line.flags) {
    RETURN_IF_ERROR(Assign(*flag.field, flag.text, Origin::kFlag, flag.detail));
  }
  RETURN_IF_ERROR(CheckRequired());
  return line.parsed;
}

std::string Schema::PrintField(const Field& field) {
  const bool hide = field.secret && field.origin != Origin::kDefault;
  return absl::StrCat(field.name, "=", hide ? "(hidden)" : field.get(), " (",
                      OriginText(field.origin, field.origin_detail), ")");
}

std::string Schema::PrintEffective() const {
  std::string out;
  for (const Field& field : fields_) absl::StrAppend(&out, PrintField(field), "\n");
  return out;
}

std::string Schema::PrintChanged() const {
  std::vector<std::string> changed;
  for (const Field& field : fields_) {
    if (field.get() != field.default_text) changed.push_back(PrintField(field));
  }
  return absl::StrJoin(changed, ", ");
}

}  // namespace tandem::config
