// Goal: configuration comes from four sources with one precedence, every value keeps its type and
// range, and a mistake is answered with its name, its place and the nearest known name.
#include "common/config/schema.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "common/config/completion.h"
#include "tests/testing/status_matchers.h"

namespace tandem::config {
namespace {

// A status of `code` whose message holds `part`.
::testing::Matcher<const absl::Status&> Fails(absl::StatusCode code, const std::string& part) {
  return tandem::testing::StatusIs(code, ::testing::HasSubstr(part));
}
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Mode { kFast, kExact };

struct SampleConfig {
  std::string grpc = "127.0.0.1:0";
  bool trace = false;
  int32_t queue_limit = 100;
  int64_t seed = -1;
  double share = 0.5;
  absl::Duration timeout = absl::Seconds(10);
  Bytes kv_memory = {int64_t{64} << 20};
  std::vector<std::string> peers;
  Mode mode = Mode::kFast;
  std::string log_level = "info";
};

struct Sample {
  SampleConfig config;
  Schema schema{"tandem-router", "Places requests on nodes."};
  Sample() {
    schema.Add("grpc", &config.grpc, "Address the gRPC server listens on, host:port.");
    schema.Add("trace", &config.trace, "Writes traces.");
    schema.Add("queue-limit", &config.queue_limit, "Requests that may wait.",
               {.min = 1, .max = 1000, .unit = "requests", .group = "Admission"});
    schema.Add("seed", &config.seed, "Seed.");
    schema.Add("share", &config.share, "Share.", {.min = 0.0, .max = 1.0});
    schema.Add("timeout", &config.timeout, "Time a leg may take.",
               {.min = absl::Milliseconds(1), .max = absl::Hours(1)});
    schema.Add("kv-memory", &config.kv_memory, "Memory for blocks.", {.min = Bytes{4096}});
    schema.Add("peers", &config.peers, "Other routers.");
    schema.AddEnum("mode", &config.mode, "How to place.",
                   {{"fast", Mode::kFast}, {"exact", Mode::kExact}});
    schema.Add("log-level", &config.log_level, "Least level logged.",
               {.choices = {"debug", "info", "error"}});
  }
  absl::Status Flags(std::vector<std::string> args) {
    return schema.Parse({.args = std::move(args)}).status();
  }
};

// A file in the test's own folder, removed at the end.
class YamlFile {
 public:
  explicit YamlFile(const std::string& text)
      : path_(absl::StrCat(::testing::TempDir(), "config_", getpid(), ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~YamlFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Schema, FlagsSetEveryType) {
  Sample sample;
  ASSERT_TRUE(sample
                  .Flags({"--grpc=0.0.0.0:7", "--trace", "--queue-limit", "5", "--seed", "-9",
                          "--share=0.25", "--timeout=250ms", "--kv-memory=1.5GiB", "--peers=a, b",
                          "--mode=exact", "--log_level=debug"})
                  .ok());
  EXPECT_EQ(sample.config.grpc, "0.0.0.0:7");
  EXPECT_TRUE(sample.config.trace);
  EXPECT_EQ(sample.config.queue_limit, 5);
  EXPECT_EQ(sample.config.seed, -9);
  EXPECT_EQ(sample.config.share, 0.25);
  EXPECT_EQ(sample.config.timeout, absl::Milliseconds(250));
  EXPECT_EQ(sample.config.kv_memory.count, int64_t{3} << 29);
  EXPECT_THAT(sample.config.peers, ElementsAre("a", "b"));
  EXPECT_EQ(sample.config.mode, Mode::kExact);
  EXPECT_EQ(sample.config.log_level, "debug");
}

TEST(Schema, PrecedenceIsDefaultFileEnvironmentFlagAndIsPrinted) {
  const YamlFile file("# router\ngrpc: file:1\nqueue_limit: 2\nseed: 3\npeers: [x, y]\n");
  Sample sample;
  const auto parsed =
      sample.schema.Parse({.args = {"--config", file.path(), "--seed=5", "--print-config"},
                           .env = {{"TANDEM_ROUTER_QUEUE_LIMIT", "4"},
                                   {"TANDEM_ROUTER_SEED", "4"},
                                   {"TANDEM_DECODE_NODE_X", "other process"},
                                   {"HOME", "/"}}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->print_requested);
  const std::string text = sample.schema.PrintEffective();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("grpc=file:1 (file ", file.path(), ":2)\n")));
  EXPECT_THAT(text, HasSubstr("queue-limit=4 (env TANDEM_ROUTER_QUEUE_LIMIT)\n"));
  EXPECT_THAT(text, HasSubstr("seed=5 (flag)\n"));
  EXPECT_THAT(text, HasSubstr("share=0.5 (default)\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("peers=x,y (file ", file.path(), ":5)\n")));
}

TEST(Schema, TheFileComesFromTheFlagThenTheEnvironmentThenTheCaller) {
  const YamlFile file("seed: 8\n");
  Sample by_env;
  ASSERT_TRUE(
      by_env.schema.Parse({.env = {{"TANDEM_ROUTER_CONFIG", file.path()}}, .file = "/absent.yaml"})
          .ok());
  EXPECT_EQ(by_env.config.seed, 8);
  Sample by_flag;
  ASSERT_TRUE(by_flag.schema
                  .Parse({.args = {"--config=" + file.path()},
                          .env = {{"TANDEM_ROUTER_CONFIG", "/absent.yaml"}}})
                  .ok());
  EXPECT_EQ(by_flag.config.seed, 8);
  Sample absent;
  EXPECT_THAT(absent.schema.Parse({.file = "/absent.yaml"}).status(),
              Fails(absl::StatusCode::kNotFound, "/absent.yaml"));
}

TEST(Schema, UnknownNamesAreAnsweredWithTheNearestKnownOne) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  Sample sample;
  EXPECT_THAT(sample.Flags({"--trace", "--grcp=x"}),
              Fails(kBad, "unknown flag --grcp (argument 2); nearest known: --grpc"));
  EXPECT_THAT(sample.Flags({"--no-trcae"}), Fails(kBad, "nearest known: --no-trace"));
  EXPECT_THAT(sample.Flags({"--no-grpc"}), Fails(kBad, "unknown flag --no-grpc"));
  EXPECT_THAT(sample.Flags({"--zzzzzzzz=1"}), Fails(kBad, "--help lists what is known"));
  EXPECT_THAT(sample.Flags({"-x"}), Fails(kBad, "unknown flag -x"));
  EXPECT_THAT(sample.schema.Parse({.env = {{"TANDEM_ROUTER_QUEUE_LIMT", "1"}}}).status(),
              Fails(kBad,
                    "unknown environment variable TANDEM_ROUTER_QUEUE_LIMT; nearest known: "
                    "TANDEM_ROUTER_QUEUE_LIMIT"));
  sample.schema.LeaveEnvironmentOf("tandem-router queue");
  EXPECT_OK(sample.schema.Parse({.env = {{"TANDEM_ROUTER_QUEUE_LIMT", "1"}}}).status());
  const YamlFile file("seed: 1\ntimeuot: 3s\n");
  EXPECT_THAT(sample.schema.Parse({.file = file.path()}).status(),
              Fails(kBad, absl::StrCat("unknown key 'timeuot' (", file.path(),
                                       ":2); nearest known: timeout")));
}

TEST(Schema, KubernetesServiceLinksAreNotTypos) {
  Sample sample;
  EXPECT_TRUE(sample.schema
                  .Parse({.env = {{"TANDEM_ROUTER_SERVICE_HOST", "10.0.0.1"},
                                  {"TANDEM_ROUTER_SERVICE_PORT_GRPC", "50051"},
                                  {"TANDEM_ROUTER_PORT", "tcp://10.0.0.1:50051"},
                                  {"TANDEM_ROUTER_PORT_50051_TCP_ADDR", "10.0.0.1"}}})
                  .ok());
  EXPECT_FALSE(sample.schema.Parse({.env = {{"TANDEM_ROUTER_PORT", "50051"}}}).ok());
}

TEST(Schema, BadValuesNameKeyValuePlaceAndExpectation) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  Sample sample;
  EXPECT_THAT(sample.Flags({"--queue-limit=0"}),
              Fails(kBad,
                    "queue-limit: value '0' (flag, argument 1): expected an integer, from 1 to "
                    "1000"));
  EXPECT_THAT(sample.Flags({"--queue-limit=99999999999"}),
              Fails(kBad, "expected an integer, from 1 to 1000"));
  EXPECT_THAT(sample.Flags({"--seed=99999999999999999999"}),
              Fails(kBad, "expected an integer, from -9223372036854775808 to 9223372036854775807"));
  EXPECT_THAT(sample.Flags({"--share=nan"}), Fails(kBad, "a finite number, from 0 to 1"));
  EXPECT_THAT(sample.Flags({"--timeout=10"}), Fails(kBad, "a duration such as 10s"));
  EXPECT_THAT(sample.Flags({"--timeout=2h"}), Fails(kBad, "from 1ms to 1h"));
  EXPECT_THAT(sample.Flags({"--kv-memory=12"}), Fails(kBad, "at least 4KiB"));
  EXPECT_THAT(sample.Flags({"--trace=maybe"}), Fails(kBad, "true or false"));
  EXPECT_THAT(sample.Flags({"--mode=slow"}), Fails(kBad, "one of fast, exact"));
  EXPECT_THAT(sample.Flags({"--log-level=loud"}), Fails(kBad, "one of debug, info, error"));
  EXPECT_THAT(sample.Flags({"--peers=a,,b"}), Fails(kBad, "separated by commas"));
  EXPECT_THAT(sample.Flags({"--grpc"}), Fails(kBad, "expected a value after it"));
  EXPECT_THAT(sample.Flags({"--grpc", "--trace"}), Fails(kBad, "expected a value after it"));
  EXPECT_THAT(sample.Flags({"extra"}), Fails(kBad, "unexpected argument 'extra' (argument 1)"));
  EXPECT_THAT(sample.schema.Parse({.env = {{"TANDEM_ROUTER_SEED", "x"}}}).status(),
              Fails(kBad, "seed: value 'x' (env TANDEM_ROUTER_SEED): expected an integer"));
}

TEST(Schema, TheLowerBoundCanBeExcluded) {
  double share = 1;
  double factor = 1;
  int32_t count = 1;
  Schema schema("tandem-router", "Places requests on nodes.");
  schema.Add("share", &share, "Share.", {.min = 0.0, .max = 1.0, .min_excluded = true});
  schema.Add("factor", &factor, "Factor.", {.min = 0.0, .min_excluded = true});
  schema.Add("count", &count, "Count.", {.min = 0});
  const auto flag = [&schema](const std::string& arg) {
    return schema.Parse({.args = {arg}}).status();
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(flag("--share=0"), Fails(kBad, "expected a finite number, above 0, at most 1"));
  EXPECT_THAT(flag("--factor=0"), Fails(kBad, "expected a finite number, above 0"));
  EXPECT_THAT(flag("--count=2147483648"), Fails(kBad, "an integer, from 0 to 2147483647"));
  EXPECT_THAT(flag("--share=0.001"), tandem::testing::IsOk());
  EXPECT_THAT(flag("--share=1"), tandem::testing::IsOk());
  EXPECT_EQ(schema.fields()[0].range, "above 0, at most 1");
}

TEST(Schema, BadFilesNameTheLine) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"grpc: x\nseed: [1, 2]\n", ":2): expected an integer, found a nested structure"},
      {"seed:\n", ":1): expected an integer, found nothing"},
      {"seed: 1\nseed: 2\n", ":2): given twice"},
      {"- a\n- b\n", "expected a map"},
      {"grpc: x\n  bad: [\n", "not YAML"},
      {"? [a]\n: 1\n", "expected a field's name as key"},
      {"peers: [a, {b: c}]\n", "expected a list of strings"},
      {"queue-limit: 5000\n", ":1): expected an integer, from 1 to 1000"},
  };
  for (const auto& c : kCases) {
    const YamlFile file(c.text);
    Sample sample;
    EXPECT_THAT(sample.schema.Parse({.file = file.path()}).status(), Fails(kBad, c.message))
        << c.text;
  }
  const YamlFile empty("# nothing\n");
  Sample sample;
  EXPECT_TRUE(sample.schema.Parse({.file = empty.path()}).ok());
}

TEST(Schema, PositionalsAreReturnedWhereAllowed) {
  Sample sample;
  sample.schema.AllowPositionals("prompt", 2);
  const auto parsed = sample.schema.Parse({.args = {"hello", "--trace", "--", "--not-a-flag"}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->positionals, ElementsAre("hello", "--not-a-flag"));
  EXPECT_THAT(sample.Flags({"a", "b", "c"}),
              Fails(absl::StatusCode::kInvalidArgument, "at most 2 prompt"));
}

TEST(Schema, RequiredSecretAndCheckedFields) {
  std::string token, name = "x";
  Schema schema("tandem up", "Starts a cluster.");
  schema.Add("token", &token, "Shared secret.", {.required = true, .secret = true});
  schema.Add("name", &name, "Name.", {.check = [](const std::string& text) {
               return text.size() < 4 ? absl::OkStatus()
                                      : absl::InvalidArgumentError("at most 3 characters");
             }});
  EXPECT_THAT(schema.Parse({}).status(),
              Fails(absl::StatusCode::kInvalidArgument, "token is not set"));
  ASSERT_TRUE(schema.Parse({.env = {{"TANDEM_UP_TOKEN", "hush"}}}).ok());
  EXPECT_EQ(token, "hush");
  EXPECT_THAT(schema.PrintEffective(), Not(HasSubstr("hush")));
  EXPECT_THAT(schema.Parse({.args = {"--token=a", "--name=toolong"}}).status(),
              Fails(absl::StatusCode::kInvalidArgument, "expected at most 3 characters"));
}

TEST(Schema, HelpWinsOverErrorsAndIsWrapped) {
  Sample sample;
  const auto parsed = sample.schema.Parse({.args = {"--help", "--nonsense"}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->help_requested);
  const std::string help = sample.schema.Help();
  for (absl::string_view rest = help; !rest.empty();) {
    const size_t end = rest.find('\n');
    EXPECT_LE(end, 100u) << rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  EXPECT_THAT(help,
              HasSubstr("Admission:\n  --queue-limit=<integer>\n      Requests that may wait. "
                        "Range: from 1 to 1000 requests. Default: 100.\n"));
  EXPECT_THAT(help, HasSubstr("--trace, --no-trace"));
}

TEST(Schema, MarkdownHasARowForEachField) {
  Sample sample;
  const std::string text = sample.schema.Markdown();
  EXPECT_THAT(text, HasSubstr("## tandem-router\n"));
  EXPECT_THAT(text, HasSubstr("| `--queue-limit` | `TANDEM_ROUTER_QUEUE_LIMIT` | integer | `100` | "
                              "from 1 to 1000 requests | Requests that may wait. |\n"));
}

TEST(Schema, TheEnvironmentIsReadAsItIs) {
  setenv("TANDEM_CONFIG_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(Environment()["TANDEM_CONFIG_TEST_VARIABLE"], "a=b");
}

// What bash would offer for `words` with the cursor at the last one.
std::string Complete(const std::string& script, const std::string& words, int cursor) {
  const std::string path = absl::StrCat(::testing::TempDir(), "complete_", getpid(), ".sh");
  std::ofstream(path) << script << "\nCOMP_WORDS=(" << words << ")\nCOMP_CWORD=" << cursor
                      << "\n_tandem\nprintf '%s ' \"${COMPREPLY[@]}\"\n";
  FILE* pipe = popen(absl::StrCat("bash ", path).c_str(), "r");
  std::string out;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0);
  unlink(path.c_str());
  return out;
}

TEST(Completion, BashOffersSubcommandsFlagsAndChoices) {
  std::string engine = "cpu";
  bool serve = false;
  Schema up("tandem up", "Starts a cluster."), chat("tandem chat", "Talks.");
  up.Add("engine", &engine, "Engine.", {.choices = {"cpu", "hash"}});
  up.Add("serve", &serve, "Stays.");
  const std::string script = BashCompletion("tandem", {&up, &chat});
  EXPECT_EQ(Complete(script, "tandem ''", 1), "up chat ");
  EXPECT_EQ(Complete(script, "tandem up --e", 2), "--engine ");
  EXPECT_EQ(Complete(script, "tandem up --no", 2), "--no-serve ");
  EXPECT_EQ(Complete(script, "tandem up --engine = h", 4), "hash ");
  EXPECT_EQ(Complete(script, "tandem up --engine =", 3), "cpu hash ");
  EXPECT_EQ(Complete(script, "tandem chat --e", 2), " ");
}

TEST(Completion, BashOffersSecondWords) {
  Schema bench("tandem bench", "Measures."), serve("tandem bench serve", "Measures a server.");
  const std::string script = BashCompletion(
      "tandem", {&bench, &serve}, {{"bench", {"engine"}}, {"keys", {"add", "list"}}, {"up", {}}});
  EXPECT_EQ(Complete(script, "tandem ''", 1), "bench keys up ");
  EXPECT_EQ(Complete(script, "tandem bench ''", 2), "serve engine ");
  EXPECT_EQ(Complete(script, "tandem bench s", 2), "serve ");
  EXPECT_EQ(Complete(script, "tandem keys a", 2), "add ");
  EXPECT_EQ(Complete(script, "tandem bench --h", 2), "--help ");
}

TEST(Completion, ZshOffersSecondWords) {
  Schema bench("tandem bench", "Measures."), serve("tandem bench serve", "Measures a server.");
  const std::string script =
      ZshCompletion("tandem", {&bench, &serve}, {{"bench", {"engine"}}, {"keys", {"add", "list"}}});
  EXPECT_THAT(script, HasSubstr("compadd -- bench keys\n"));
  EXPECT_THAT(script, HasSubstr("bench) compadd -- serve engine; return ;;\n"));
  EXPECT_THAT(script, HasSubstr("keys) compadd -- add list; return ;;\n"));
}

TEST(Completion, ZshNamesEveryFlag) {
  Sample sample;
  const std::string script = ZshCompletion("tandem-router", {&sample.schema});
  EXPECT_THAT(script, HasSubstr("#compdef tandem-router"));
  EXPECT_THAT(script, HasSubstr("'--mode=[How to place.]:choice:(fast exact)'"));
  EXPECT_THAT(script, HasSubstr("host\\:port"));
}

// What fish offers for `line`, in one line.
std::string CompleteInFish(const std::string& script, const std::string& line) {
  const std::string path = absl::StrCat(::testing::TempDir(), "complete_", getpid(), ".fish");
  std::ofstream(path) << script;
  FILE* pipe = popen(absl::StrCat("HOME=", ::testing::TempDir(), " fish --no-config -c 'source ",
                                  path, "; complete -C \"", line, "\"' | cut -f1 | tr '\\n' ' '")
                         .c_str(),
                     "r");
  std::string out;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0);
  unlink(path.c_str());
  return out;
}

TEST(Completion, FishOffersSubcommandsFlagsAndChoices) {
  if (std::system("fish --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "fish is not installed";
  std::string engine = "cpu";
  bool serve = false;
  int32_t rate = 1;
  Schema up("tandem up", "Starts a cluster."), bench("tandem bench", "Measures."),
      bench_serve("tandem bench serve", "Measures a server.");
  up.Add("engine", &engine, "Engine, the node's.", {.choices = {"cpu", "hash"}});
  up.Add("serve", &serve, "Stays.");
  bench.Add("exact", &serve, "Exactly.");
  bench_serve.Add("rate", &rate, "Requests each second.");
  const std::string script = FishCompletion("tandem", {&up, &bench, &bench_serve},
                                            {{"bench", {"engine"}}, {"keys", {"add", "list"}}});
  EXPECT_EQ(CompleteInFish(script, "tandem "), "bench keys up ");
  EXPECT_EQ(CompleteInFish(script, "tandem bench "), "engine serve ");
  EXPECT_EQ(CompleteInFish(script, "tandem bench s"), "serve ");
  EXPECT_EQ(CompleteInFish(script, "tandem keys a"), "add ");
  EXPECT_EQ(CompleteInFish(script, "tandem up --e"), "--engine ");
  EXPECT_EQ(CompleteInFish(script, "tandem up --no"), "--no-serve ");
  EXPECT_EQ(CompleteInFish(script, "tandem up --engine=h"), "--engine=hash ");
  EXPECT_EQ(CompleteInFish(script, "tandem bench --e"), "--exact ");
  EXPECT_EQ(CompleteInFish(script, "tandem bench serve --ra"), "--rate ");
  EXPECT_EQ(CompleteInFish(script, "tandem bench serve --e"), "");
}

TEST(Value, BytesAndDurationsRoundTrip) {
  for (const char* text : {"64MiB", "1GiB", "3KiB", "4097", "0", "5TiB"}) {
    const auto parsed = ValueTraits<Bytes>::Parse(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(ValueTraits<Bytes>::Format(*parsed), text);
  }
  EXPECT_EQ(ValueTraits<Bytes>::Parse("2 MB")->count, 2'000'000);
  EXPECT_EQ(ValueTraits<Bytes>::Parse("9223372036854775807")->count, INT64_MAX);
  for (const char* text : {"", "-1", "1.5", "0.3KiB", "9223372036854775808", "8388608TiB", "nan",
                           "inf", "1e40", "MiB", "1 2MiB", "0x10"}) {
    EXPECT_FALSE(ValueTraits<Bytes>::Parse(text).ok()) << text;
  }
  for (const double value : {0.1, 1e-7, 1.0 / 3, 123456789.125}) {
    EXPECT_EQ(*ValueTraits<double>::Parse(ValueTraits<double>::Format(value)), value);
  }
}

TEST(SchemaDeathTest, RefusesWhatAProgrammerGotWrong) {
  int32_t value = 5;
  Schema schema("tandem-x", "");
  schema.Add("a", &value, "");
  EXPECT_DEATH(schema.Add("a", &value, ""), "added twice");
  EXPECT_DEATH(schema.Add("B", &value, ""), "configuration field B");
  EXPECT_DEATH(schema.Add("c", &value, "", {.max = 4}), "out of its range");
}

TEST(Schema, TakesOverTheFieldsOfAnotherSchema) {
  Sample part;
  int32_t count = 1;
  bool trace = false;
  Schema whole("tandem up", "Starts all.");
  whole.Add("count", &count, "Processes.", {.min = 1});
  whole.Add("trace", &trace, "Writes traces of all processes.");
  whole.Embed(part.schema, {.except = {"seed"}});
  ASSERT_OK(whole
                .Parse({.args = {"--queue-limit=7", "--trace", "--count=2"},
                        .env = {{"TANDEM_UP_PEERS", "x"}}})
                .status());
  EXPECT_EQ(part.config.queue_limit, 7);
  EXPECT_THAT(part.config.peers, ElementsAre("x"));
  // A description of its own replaces the embedded one.
  EXPECT_TRUE(trace);
  EXPECT_FALSE(part.config.trace);
  EXPECT_THAT(whole.Help(), HasSubstr("Writes traces of all processes."));
  // Limits come along; what is left out is unknown.
  EXPECT_THAT(whole.Parse({.args = {"--queue-limit=0"}}).status(),
              Fails(absl::StatusCode::kInvalidArgument, "an integer, from 1 to 1000"));
  EXPECT_THAT(whole.Parse({.args = {"--seed=1"}}).status(),
              Fails(absl::StatusCode::kInvalidArgument, "unknown flag --seed"));
}

TEST(Schema, ReadsABarePortAsOneOfThisMachine) {
  std::string address = "127.0.0.1:0";
  std::vector<std::string> addresses;
  Schema schema("tandem-router", "");
  schema.Add("grpc", &address, "Address.", {.normalise = CompleteAddress});
  schema.Add("peers", &addresses, "Addresses.", {.normalise = CompleteAddresses});
  ASSERT_OK(schema.Parse({.args = {"--grpc=50051", "--peers=1,example:2,[::1]:3"}}).status());
  EXPECT_EQ(address, "127.0.0.1:50051");
  EXPECT_THAT(addresses, ElementsAre("127.0.0.1:1", "example:2", "[::1]:3"));
  for (const char* as_it_is : {"localhost", ":1", "0.0.0.0:1", ""}) {
    EXPECT_EQ(CompleteAddress(as_it_is), as_it_is);
  }
}

TEST(Schema, AnErrorSaysWhichPortsThereAre) {
  std::string address, other;
  Schema schema("tandem-router", "");
  schema.Add("grpc", &address, "Address.", {.check = CheckAddress});
  schema.Add("http", &other, "Address.", {.check = CheckAddressOrNone});
  for (const char* good : {"0", "65535", "localhost:1", "[::1]:50051", ":1", "dns:///a:1"})
    EXPECT_OK(schema.Parse({.args = {absl::StrCat("--grpc=", good), "--http="}}).status()) << good;
  for (const char* wrong : {"", "65536", "99999999999", "-1", "localhost", "localhost:", "a:http"})
    EXPECT_THAT(schema.Parse({.args = {absl::StrCat("--grpc=", wrong)}}).status(),
                Fails(absl::StatusCode::kInvalidArgument,
                      "expected a port or host:port, with a port from 0 to 65535"))
        << wrong;
}

}  // namespace
}  // namespace tandem::config
