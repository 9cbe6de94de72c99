// Goal: no template and no conversation makes rendering crash, run on, or grow without bound; each
// limit is reported with the line that met it.
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/model/chat_template/chat_template.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using tandem::testing::StatusIs;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source,
                                   const ChatTemplate::RenderInput& input = {},
                                   const TemplateLimits& limits = {}) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source, limits);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(input);
}

std::string Repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

void ExpectRefused(const std::string& source, const std::string& message) {
  EXPECT_THAT(Render(source), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
      << source.substr(0, 200);
}

TEST(ChatTemplateLimits, WorkIsBounded) {
  for (const char* source : {
           "\n{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
           "\n{{ range(10 ** 15) | length }}",
           "\n{{ range(0, 10 ** 15, 3) }}",
           "\n{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% "
           "endfor %}",
           "\n{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s "
           "%}{% endfor %}",
           "\n{{ [1] * 10 ** 12 }}",
           "\n{{ [1] | batch(10 ** 12, 0) | list }}",
       }) {
    ExpectRefused(source, "chat template line 2: the template takes more than");
  }
}

// Each round or item reads a long text or makes one, in few operations.
TEST(ChatTemplateLimits, TextsThatAreReadCount) {
  TemplateLimits limits;
  limits.steps_max = 1'000'000;
  const auto expect_refused = [&](const std::string& body) {
    const std::string source = absl::StrCat(
        "{% set s = 'x' * 600000 %}{% set b = ' ' * 600000 %}{% set l = [s] %}{% set d = {s: 1} %}"
        "{% set e = {s: 1} %}",
        body);
    EXPECT_THAT(Render(source, {}, limits),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the template takes more than 1000000 steps")))
        << body;
  };
  for (const char* round : {
           "{% if s is lower %}{% endif %}",
           "{% if s is upper %}{% endif %}",
           "{% if l is lower %}{% endif %}",
           "{% if l | wordcount %}{% endif %}",
           "{% if '%.1s' % l %}{% endif %}",
           "{% if '%.1s' % s %}{% endif %}",
           "{% if l | replace('x', '') %}{% endif %}",
           "{% if '' | replace(s, s) %}{% endif %}",
           "{% if '' | indent(s) %}{% endif %}",
           "{% if 'a'.strip(s) %}{% endif %}",
           "{% if [1] | join(s) %}{% endif %}",
           "{% if [1] | join(l) %}{% endif %}",
           "{% if namespace(d) %}{% endif %}",
           "{% if dict([(s, 1)]) %}{% endif %}",
           "{% if {s: 1} %}{% endif %}",
           "{% if d[s] %}{% endif %}",
           "{% if d.get(s) %}{% endif %}",
           "{% if s in d %}{% endif %}",
           "{% if d == e %}{% endif %}",
           "{% if d | dictsort %}{% endif %}",
           "{% if [s] | sort(attribute='0.0') %}{% endif %}",
       }) {
    expect_refused(absl::StrCat("{% for i in range(100) %}", round, "{% endfor %}"));
  }
  for (const char* items : {
           "(l * 100) | sort",
           "(l * 100) | unique | list",
           "(l * 100) | unique(true) | list",
           "(l * 100) | max",
           "([b] * 100) | map('trim') | list",
           "([''] * 100) | map('replace', s, '') | list",
           "(l * 100) | map(attribute=599999) | list",
           "(l * 100) | map(attribute='-1') | list or (l * 100) | map(attribute='0.0') | list",
           "(l * 100) | select('lower') | list",
           "(l * 100) | selectattr(0) | list",
           "b.strip(' ' ~ 'x' * 1000)",
       }) {
    expect_refused(absl::StrCat("{% if ", items, " %}{% endif %}"));
  }
}

TEST(ChatTemplateLimits, MissingItemsAreNamedShortly) {
  ExpectRefused("{{ {}[['x' * 2000]].y }}", "line 1: 'dict object' has no attribute '<list>'");
}

// The steps that a rendering takes: the least limit that it stays within.
int64_t StepsOf(const std::string& source) {
  int64_t refused = 0, enough = TemplateLimits().steps_max;
  while (enough - refused > 1) {
    TemplateLimits limits;
    limits.steps_max = (refused + enough) / 2;
    (Render(source, {}, limits).ok() ? enough : refused) = limits.steps_max;
  }
  return enough;
}

TEST(ChatTemplateLimits, TheLastStepOfTheBoundIsTaken) {
  const auto loop = [](int64_t rounds) {
    return absl::StrCat("{% for i in range(", rounds, ") %}{{ i }}{% endfor %}");
  };
  const int64_t of_1000 = StepsOf(loop(1000)), of_2000 = StepsOf(loop(2000));
  EXPECT_EQ(StepsOf(loop(3000)) - of_2000, of_2000 - of_1000) << "steps must not depend on chance";
  ASSERT_EQ((of_2000 - of_1000) % 1000, 0);
  const int64_t of_a_round = (of_2000 - of_1000) / 1000;
  const int64_t rounds_max =
      (TemplateLimits().steps_max - of_1000 + 1000 * of_a_round) / of_a_round;
  EXPECT_OK(Render(loop(rounds_max)).status());
  ExpectRefused(loop(rounds_max + 1), "the template takes more than 20000000 steps");
}

TEST(ChatTemplateLimits, TheLastByteOfTheBoundIsGiven) {
  const int64_t bytes_max = TemplateLimits().output_bytes_max;
  EXPECT_EQ(Render(absl::StrCat("{{ 'x' * ", bytes_max, " }}"))->size(),
            static_cast<size_t>(bytes_max));
  ExpectRefused(absl::StrCat("{{ 'x' * ", bytes_max + 1, " }}"), "a string grows beyond 67108864");
  ExpectRefused(absl::StrCat("{{ 'x' * ", bytes_max, " }}y"), "a string grows beyond 67108864");
}

TEST(ChatTemplateLimits, TextsAreBounded) {
  for (const char* source : {
           "\n{{ 'ab' * 10 ** 12 }}",
           "\n{{ 'x' | center(10 ** 12) }}",
           "\n{{ 'x' | indent(10 ** 12) }}",
           "\n{% set s = 'x' * 1000000 %}{{ s | replace('x', s) }}",
           "\n{% set s = 'x' * 1000000 %}{{ [s] * 1000 }}",
           "\n{% set s = 'x' * 1000000 %}{{ ([s] * 1000) | join }}",
           "\n{% set s = 'x' * 60000000 %}{{ s }}{{ s }}",
       }) {
    ExpectRefused(source, "chat template line 2: a string grows beyond");
  }
  ExpectRefused(
      "{% set n = namespace(l=[1]) %}{% for i in range(150) %}{% set n.l = [n.l, n.l] %}"
      "{% endfor %}{{ n.l }}",
      "a string grows beyond");
  ExpectRefused(
      "{% set n = namespace(l=[1]) %}{% for i in range(150) %}{% set n.l = [n.l, n.l] %}"
      "{% endfor %}{{ n.l | tojson }}",
      "tojson: expected at most");
  ExpectRefused(
      "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(150) %}"
      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
      "steps");
  ExpectRefused("{{ '%99999999999s' % 'x' | length }}{{ 10 ** 40 }}", "integer too large");
}

TEST(ChatTemplateLimits, NestingIsBounded) {
  const int deep = 40000;  // within source_bytes_max
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"{{ " + Repeat("(", deep), Repeat(")", deep) + " }}"},
           {"{{ " + Repeat("[", deep), Repeat("]", deep) + " }}"},
           {"{{ " + Repeat("not ", deep), "1 }}"},
           {"{{ " + Repeat("-", deep), "1 }}"},
           {"{{ 1" + Repeat(" + 1", deep), " }}"},
           {"{{ 1" + Repeat("|abs", deep), " }}"},
           {"{{ a" + Repeat(".a", deep), " }}"},
           {"{{ 1" + Repeat(" if 1", deep), " }}"},
           {"{{ 1" + Repeat(" if 1 else 1", deep), " }}"},
           {Repeat("{% if 1 %}", deep), Repeat("{% endif %}", deep)},
           {"{% if 1 %}" + Repeat("{% elif 1 %}", deep / 2), "{% endif %}"},
           {"{% set " + Repeat("(", deep), "a" + Repeat(")", deep) + " = 1 %}"},
       }) {
    EXPECT_THAT(Render(open + close), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("nested deeper than 300 levels")))
        << open.substr(0, 30);
  }
  // Flat lists of operands are no nesting.
  EXPECT_EQ(*Render("{{ 1" + Repeat(" and 1", 10000) + " }}"), "1");
  EXPECT_EQ(Render("{{ 1" + Repeat(" ~ 1", 10000) + " }}")->size(), 10001u);
}

TEST(ChatTemplateLimits, RecursionAndValuesAreBoundedAndCyclesFreed) {
  ExpectRefused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls nest deeper than 400");
  ExpectRefused(
      "{% macro f() %}{{ caller() }}{% endmacro %}"
      "{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
      "calls nest deeper than 400");
  ExpectRefused(
      "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}"
      "{% endfor %}",
      "a value nests deeper than 200");
  // Held by methods, and by loops.
  for (const char* link :
       {"{% set n.p = [n.p].copy %}", "{% for x in [n.p] %}{% set n.p = loop %}{% endfor %}"}) {
    ExpectRefused(absl::StrCat("{% set n = namespace(p=1) %}{% for i in range(300000) %}", link,
                               "{% endfor %}"),
                  "a value nests deeper than 200");
  }
  EXPECT_EQ(*Render("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.n.l[0] }}"
                    "{{ n == n.n }}"),
            "<namespace>True");
  // Closures within closures, one for each round.
  EXPECT_TRUE(Render("{% set n = namespace() %}{% macro outer() %}{% macro inner() %}"
                     "{% macro outer() %}x{% endmacro %}{% set n.f = inner %}{% endmacro %}"
                     "{{ inner() }}{% endmacro %}{% for i in range(100000) %}{{ outer() }}"
                     "{% endfor %}")
                  .ok());
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = nlohmann::ordered_json::array({deep});
  ChatTemplate::RenderInput input;
  input.messages = deep;
  EXPECT_THAT(Render("x", input),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nests too deeply")));
}

TEST(ChatTemplateLimits, ErrorsNameTheLineAndWhatWasExpected) {
  ExpectRefused("a\nb{% if x %}\n",
                "chat template line 2: expected 'elif' or 'else' or 'endif', "
                "found the end of the template");
  ExpectRefused("\n\n{{ 1 + }}", "chat template line 3: expected an expression, found '}}'");
  ExpectRefused("{{ (1] }}", "line 1: unexpected ']', expected ')'");
  ExpectRefused("\n{% include 'x' %}", "found the tag 'include'");
  ExpectRefused("\n{% for x in y recursive %}", "expected a loop that is not recursive");
  ExpectRefused("\n{{ messages.x.y }}", "line 2: 'None' has no attribute 'x'");
  ExpectRefused("\n{{ x | nosuch }}", "line 2: there is no filter named 'nosuch'");
  ExpectRefused("{{ 1 + 'a' }}", "operator +: not defined between int and str");
  ExpectRefused("{{ raise_exception('roles must alternate') }}", "line 1: roles must alternate");
  EXPECT_THAT(Render(std::string(2 << 20, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected at most 1048576")));
}

// What a template raises may hold the conversation.
TEST(ChatTemplateLimits, OfALongErrorOnlyTheLengthIsTold) {
  const auto raised = [](const std::string& expression) {
    return std::string(Render("{{ raise_exception(" + expression + ") }}").status().message());
  };
  const std::string line = "chat template line 1: ";
  EXPECT_EQ(raised("'x' * 1024"), line + std::string(1024, 'x'));
  EXPECT_EQ(raised("'x' * 1025"), line + "a text of 1025 bytes");
  EXPECT_EQ(raised("'chat template line 1' ~ ' x' * 1000"), line + "a text of 2020 bytes");
  EXPECT_EQ(std::string(Render("{{ {}['x' * 2000].y }}").status().message()),
            line + "a text of 2033 bytes");
}

// A pass over the rest for each word would take hours.
TEST(ChatTemplateLimits, SplittingATextIntoWordsIsLinear) {
  ChatTemplate::RenderInput input;
  for (int i = 0; i < 1 << 20; ++i) input.bos_token += i % 3 == 0 ? "é " : "a\u2003";
  EXPECT_EQ(*Render("{{ bos_token.split() | length }} {{ bos_token.rsplit() | length }}"
                    " {{ bos_token.rsplit(none, 2)[1:] }}",
                    input),
            "1048576 1048576 ['a', 'é']");
}

TEST(ChatTemplateLimits, RoundedIntegersAreBounded) {
  ExpectRefused("{{ 170141183460469231731687303715884105727 | round(-38) }}", "integer too large");
  EXPECT_EQ(*Render("{{ 149 | round(-2) }} {{ 1499 | round(-300) }}"), "100 0");
}

TEST(ChatTemplateLimits, InvalidUtf8PassesThrough) {
  ChatTemplate::RenderInput input;
  input.bos_token = "\xff\xc3(\xe2\x82\xf0\x9f\x98";
  EXPECT_EQ(*Render("{{ bos_token }}", input), input.bos_token);
  EXPECT_EQ(*Render("{{ bos_token | length }} {{ bos_token[::-1] | length }}", input), "8 8");
  EXPECT_EQ(*Render("{{ bos_token | upper | lower | trim | title | length }}", input), "8");
  EXPECT_TRUE(Render("{{ [bos_token] }}{{ bos_token | tojson }}", input).ok());
}

TEST(ChatTemplateLimits, MangledTemplatesNeverCrash) {
  const uint32_t seed = 20251121;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string source =
      "{%- set ns = namespace(a=1, b=[]) %}{% for m in messages if m.role != 'x' %}"
      "{{- loop.index0 ~ m.content[::-1] | trim | tojson(indent=2) }}{% if loop.last and m is "
      "mapping %}{% set ns.a = ns.a + 1 %}{% elif not m %}{% break %}{% else %}x{% endif %}"
      "{% endfor %}{% macro f(a, b=2) %}{{ a }}{{ caller() }}{% endmacro %}{% call f(*[1]) %}y"
      "{% endcall %}{{ '%s' % ns.a }}{{ {'a': (1, 2)} | dictsort }}{% raw %}{{ {% endraw %}";
  ChatTemplate::RenderInput input;
  input.messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", "Hi"}}});
  TemplateLimits limits;
  limits.steps_max = 100000;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mangled = source;
    for (int edit = 0; edit < 1 + round % 4; ++edit) {
      const size_t at = random() % mangled.size();
      const size_t from = random() % mangled.size();
      const size_t length = random() % 12;
      if (random() % 2 == 0) mangled.erase(at, length);
      mangled.insert(std::min(at, mangled.size()),
                     mangled.substr(std::min(from, mangled.size()), length));
      if (mangled.empty()) mangled = source;
    }
    accepted += Render(mangled, input, limits).ok() ? 1 : 0;
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace tandem::model
