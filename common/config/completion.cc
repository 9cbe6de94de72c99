#include "common/config/completion.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tandem::config {
namespace {

// "up" for the schema of "tandem up", "bench serve" for one a level below, "" for the binary's own.
std::string Subcommand(absl::string_view binary, const Schema& schema) {
  const std::string& program = schema.program();
  if (program.size() <= binary.size() + 1 || !absl::StartsWith(program, binary)) return "";
  return program.substr(binary.size() + 1);
}

std::string FunctionName(absl::string_view binary) {
  return absl::StrCat("_", absl::StrReplaceAll(binary, {{"-", "_"}}));
}

std::vector<std::string> Flags(const Schema& schema) {
  std::vector<std::string> flags;
  for (const Schema::Field& field : schema.fields()) {
    flags.push_back(absl::StrCat("--", field.name));
    if (field.is_bool) flags.push_back(absl::StrCat("--no-", field.name));
  }
  for (const char* built_in : {"--config", "--print-config", "--help", "--version"}) {
    flags.push_back(built_in);
  }
  return flags;
}

// A first word after the binary's name, and the words that may follow it.
struct FirstWord {
  std::string name;
  std::vector<std::string> next;

  std::string Next() const { return absl::StrJoin(next, " "); }
};

// The first words of all subcommands and of `words`, each once.
std::vector<FirstWord> FirstWords(absl::string_view binary, absl::Span<const Schema* const> schemas,
                                  const SecondWords& words) {
  std::vector<FirstWord> found;
  const auto next_of = [&found](const std::string& name) -> std::vector<std::string>& {
    const auto at = std::find_if(found.begin(), found.end(),
                                 [&](const FirstWord& word) { return word.name == name; });
    return at != found.end() ? at->next : found.emplace_back(FirstWord{name, {}}).next;
  };
  for (const Schema* schema : schemas) {
    const std::string name = Subcommand(binary, *schema);
    if (name.empty()) continue;
    const size_t space = std::min(name.size(), name.find(' '));
    std::vector<std::string>& next = next_of(name.substr(0, space));
    if (space < name.size()) next.push_back(name.substr(space + 1));
  }
  for (const auto& [name, more] : words) {
    std::vector<std::string>& next = next_of(name);
    next.insert(next.end(), more.begin(), more.end());
  }
  return found;
}

std::string Names(const std::vector<FirstWord>& words) {
  return absl::StrJoin(
      words, " ", [](std::string* out, const FirstWord& word) { absl::StrAppend(out, word.name); });
}

// The most specific names first, the binary's own, which matches every word, last.
std::vector<const Schema*> BySpecificity(absl::string_view binary,
                                         absl::Span<const Schema* const> schemas) {
  std::vector<const Schema*> sorted(schemas.begin(), schemas.end());
  const auto words = [&](const Schema* schema) {
    const std::string name = Subcommand(binary, *schema);
    return name.empty() ? 0 : 1 + std::count(name.begin(), name.end(), ' ');
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Schema* a, const Schema* b) { return words(a) > words(b); });
  return sorted;
}

// A pattern for the first two words of a command line, joined by a space.
std::string WordsPattern(const std::string& name) {
  if (name.empty()) return "*";
  return absl::StrContains(name, ' ') ? absl::StrReplaceAll(name, {{" ", "\\ "}})
                                      : absl::StrCat(name, "\\ *");
}

// Inside single quotes of a shell word, in a _arguments specification.
std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshSpec(const Schema::Field& field) {
  const std::string help = ZshText(field.help);
  if (field.is_bool) {
    return absl::StrCat("'--", field.name, "[", help, "]' '--no-", field.name, "[", help, "]'");
  }
  const std::string values =
      field.choices.empty() ? "_files" : absl::StrCat("(", absl::StrJoin(field.choices, " "), ")");
  return absl::StrCat("'--", field.name, "=[", help, "]:", field.type, ":", values, "'");
}

// A word of fish, in single quotes.
std::string FishWord(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}, {"\n", " "}}),
                      "'");
}

// The condition under which the flags of `name` are offered: its words were typed, and no more
// specific subcommand's.
std::string FishCondition(absl::string_view function, const std::string& name,
                          const std::vector<std::string>& others) {
  std::string condition = name.empty() ? "true" : absl::StrCat(function, " ", name);
  for (const std::string& other : others) {
    if (other != name && (name.empty() || absl::StartsWith(other, absl::StrCat(name, " "))))
      absl::StrAppend(&condition, "; and not ", function, " ", other);
  }
  return condition;
}

std::string FishFlag(const std::string& start, const Schema::Field& field) {
  const std::string flag = absl::StrCat(start, " -l ", field.name, " -d ", FishWord(field.help));
  if (field.is_bool) return absl::StrCat(flag, "\n", start, " -l no-", field.name, "\n");
  if (field.choices.empty()) return absl::StrCat(flag, " -r\n");
  return absl::StrCat(flag, " -x -a ", FishWord(absl::StrJoin(field.choices, " ")), "\n");
}

}  // namespace

std::string BashCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                           const SecondWords& words) {
  const std::string function = FunctionName(binary);
  const std::vector<FirstWord> first_words = FirstWords(binary, schemas, words);
  std::string out = absl::StrCat(function, "() {\n  local current=${COMP_WORDS[COMP_CWORD]}\n",
                                 "  local previous=${COMP_WORDS[COMP_CWORD-1]}\n");
  absl::StrAppend(&out,
                  "  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n",
                  "  if [[ $current == = ]]; then current=; fi\n", "  local flags= choices=\n");
  if (!first_words.empty()) {
    absl::StrAppend(&out, "  if (( COMP_CWORD == 1 )); then\n    COMPREPLY=($(compgen -W '",
                    Names(first_words), "' -- \"$current\"))\n    return\n  fi\n",
                    "  if (( COMP_CWORD == 2 )) && [[ $current != -* ]]; then\n",
                    "    case ${COMP_WORDS[1]} in\n");
    for (const FirstWord& word : first_words) {
      if (word.next.empty()) continue;
      absl::StrAppend(&out, "      ", word.name, ") COMPREPLY=($(compgen -W '", word.Next(),
                      "' -- \"$current\")); return ;;\n");
    }
    absl::StrAppend(&out, "    esac\n  fi\n");
  }
  absl::StrAppend(&out, "  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n");
  for (const Schema* schema : BySpecificity(binary, schemas)) {
    absl::StrAppend(&out, "    ", WordsPattern(Subcommand(binary, *schema)), ")\n      flags='",
                    absl::StrJoin(Flags(*schema), " "), "'\n      case $previous in\n");
    for (const Schema::Field& field : schema->fields()) {
      if (field.choices.empty()) continue;
      absl::StrAppend(&out, "        --", field.name, ") choices='",
                      absl::StrJoin(field.choices, " "), "' ;;\n");
    }
    absl::StrAppend(&out, "      esac ;;\n");
  }
  absl::StrAppend(&out, "  esac\n  if [[ -n $choices ]]; then\n",
                  "    COMPREPLY=($(compgen -W \"$choices\" -- \"$current\"))\n",
                  "  elif [[ $current == -* ]]; then\n",
                  "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n",
                  "  else\n    COMPREPLY=($(compgen -f -- \"$current\"))\n  fi\n}\n",
                  "complete -o filenames -F ", function, " ", binary, "\n");
  return out;
}

std::string ZshCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                          const SecondWords& words) {
  const std::string function = FunctionName(binary);
  const std::vector<FirstWord> first_words = FirstWords(binary, schemas, words);
  std::string out = absl::StrCat("#compdef ", binary, "\n\n", function, "() {\n");
  if (!first_words.empty()) {
    absl::StrAppend(&out, "  if (( CURRENT == 2 )); then\n    compadd -- ", Names(first_words),
                    "\n    return\n  fi\n",
                    "  if (( CURRENT == 3 )) && [[ $words[3] != -* ]]; then\n",
                    "    case $words[2] in\n");
    for (const FirstWord& word : first_words) {
      if (word.next.empty()) continue;
      absl::StrAppend(&out, "      ", word.name, ") compadd -- ", word.Next(), "; return ;;\n");
    }
    absl::StrAppend(&out, "    esac\n  fi\n");
  }
  absl::StrAppend(&out, "  case \"$words[2] $words[3]\" in\n");
  for (const Schema* schema : BySpecificity(binary, schemas)) {
    absl::StrAppend(&out, "    ", WordsPattern(Subcommand(binary, *schema)), ")\n      _arguments");
    for (const Schema::Field& field : schema->fields()) {
      absl::StrAppend(&out, " \\\n        ", ZshSpec(field));
    }
    absl::StrAppend(&out,
                    " \\\n        '--config=[YAML file]:file:_files' '--print-config' "
                    "'--help' '--version' '*:file:_files' ;;\n");
  }
  absl::StrAppend(&out, "  esac\n}\n\nif [[ $funcstack[1] == ", function, " ]]; then\n  ", function,
                  " \"$@\"\nelse\n  compdef ", function, " ", binary, "\nfi\n");
  return out;
}

std::string FishCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                           const SecondWords& words) {
  const std::string function = absl::StrCat("_", FunctionName(binary), "_at");
  std::vector<std::string> names;
  for (const Schema* schema : schemas) names.push_back(Subcommand(binary, *schema));
  // Whether the words after the binary's name begin with the function's arguments.
  std::string out = absl::StrCat("function ", function, "\n",
                                 "    set -l words (commandline -opc)[2..-1]\n"
                                 "    set -l size (count $argv)\n"
                                 "    test (count $words) -ge $size\n"
                                 "    and test \"$words[1..$size]\" = \"$argv\"\nend\n");
  const std::vector<FirstWord> first_words = FirstWords(binary, schemas, words);
  if (!first_words.empty()) {
    absl::StrAppend(&out, "complete -c ", binary,
                    " -f -n 'test (count (commandline -opc)) -eq 1' -a ",
                    FishWord(Names(first_words)), "\n");
  }
  for (const FirstWord& word : first_words) {
    if (word.next.empty()) continue;
    const std::string condition =
        absl::StrCat("test (count (commandline -opc)) -eq 2; and ", function, " ", word.name);
    absl::StrAppend(&out, "complete -c ", binary, " -f -n ", FishWord(condition), " -a ",
                    FishWord(word.Next()), "\n");
  }
  for (const Schema* schema : schemas) {
    const std::string start =
        absl::StrCat("complete -c ", binary, " -n ",
                     FishWord(FishCondition(function, Subcommand(binary, *schema), names)));
    for (const Schema::Field& field : schema->fields()) out += FishFlag(start, field);
    absl::StrAppend(&out, start, " -l config -r -d 'A YAML file.'\n", start,
                    " -l print-config -d 'Prints all values and ends.'\n", start, " -l help\n");
  }
  return out;
}

}  // namespace tandem::config
