#include "format/jinja.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "expect_error.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(SNUG_FIXTURES) / "jinja" / name; }

JinjaTemplate::Variables variables_of(const OrderedJson& json) {
  JinjaTemplate::Variables out;
  for (const auto& [name, value] : json.items()) out.emplace_back(name, jinja::value_of_json(value.dump()));
  return out;
}

// What a template makes of variables; "UserError" and why where it fails.
std::string rendered(const std::string& text, const OrderedJson& variables) {
  try {
    const JinjaTemplate chat = JinjaTemplate::parse(text, "the template");
    return chat.render(variables_of(variables), JinjaLimits::for_input(1000)).bytes();
  } catch (const UserError& error) {
    return fmt::format("UserError: {}", error.what());
  }
}

jinja::Text marked(const std::string& text, const JinjaTemplate::Variables& variables) {
  return JinjaTemplate::parse(text, "the template").render(variables, JinjaLimits::for_input(1000));
}

// "0:abc 1:de": the runs of a text with their marks.
std::string shown(const jinja::Text& text) {
  std::string out;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    out += fmt::format("{}{}{}:{}", out.empty() ? "" : " ", run.mark & ~jinja::kGenerated,
                       run.mark & jinja::kGenerated ? "g" : "", text.view(begin, run.end));
    begin = run.end;
  }
  return out;
}

TEST(Jinja, MakesOfSmallTemplatesWhatJinja2Makes) {
  const auto all = OrderedJson::parse(read(fixture("cases.json")));
  for (const OrderedJson& entry : all["cases"]) {
    const std::string text = rendered(entry["template"], all["variables"]);
    if (entry["text"].is_null()) {
      EXPECT_TRUE(text.starts_with("UserError: ")) << entry["template"] << "\n" << text;
    } else {
      EXPECT_EQ(text, entry["text"].get<std::string>()) << entry["template"];
    }
  }
}

TEST(Jinja, IntegersBeyond64BitsKeepTheirDigits) {
  const JinjaTemplate::Variables variables = {{"v", jinja::value_of_json(R"({"least": 9223372036854775808,
      "most": 18446744073709551615, "more": 12345678901234567890123, "less": -9223372036854775809, "real": 1e22})")}};
  const auto text = [&](const std::string& text) { return marked(text, variables).bytes(); };
  EXPECT_EQ(text("{{ v | tojson }}"),
            R"({"least": 9223372036854775808, "most": 18446744073709551615, "more": 12345678901234567890123, )"
            R"("less": -9223372036854775809, "real": 1e+22})");
  EXPECT_EQ(text("{{ v.more }} {{ v.more ~ 'x' }} {{ [v.less] }} {{ v.more is number }} {{ v.more is integer }} "
                 "{{ v.more is string }} {{ v.more == v.more | int }} {{ v.more == 7 }} {{ v.more | float }}"),
            "12345678901234567890123 12345678901234567890123x [-9223372036854775809] True True False True False "
            "1.2345678901234568e+22");
  EXPECT_TRUE(fails_with<UserError>([&] { text("{{ v.more + 1 }}"); }, "int beyond 64 bits"));
  EXPECT_TRUE(
      fails_with<jinja::Failure>([&] { jinja::value_of_json(std::string(400, '1')); }, "found a number beyond 1e308"));
}

TEST(Jinja, ManyVariablesOfOneNameStayApart) {
  const auto all = OrderedJson::parse(read(fixture("cases.json")));
  EXPECT_EQ(hex(hash_of(rendered(read(fixture("language.jinja")), all["variables"]))),
            all["language.jinja"].get<std::string>());
}

// Runs where the templates are that published.json was made from: SNUG_CHAT_TEMPLATES names their folder.
TEST(Jinja, MakesOfPublishedTemplatesWhatJinja2Makes) {
  const char* const folder = std::getenv("SNUG_CHAT_TEMPLATES");
  if (!folder || !std::filesystem::is_directory(folder))
    GTEST_SKIP() << "SNUG_CHAT_TEMPLATES names no folder: scripts/fetch_templates.sh fetches build/templates";
  const auto conversations = OrderedJson::parse(read(fixture("conversations.json")));
  size_t equal = 0, all = 0, texts = 0;
  const auto published = OrderedJson::parse(read(fixture("published.json")));
  for (const auto& [name, entry] : published.items()) {
    const std::string text = read(std::filesystem::path(folder) / name);
    ASSERT_EQ(hex(hash_of(text)), entry["template"].get<std::string>()) << name;
    std::istringstream hashes(entry["texts"].get<std::string>());
    size_t wrong = 0;
    for (size_t i = 0; i < conversations.size(); ++i) {
      const std::string made = rendered(text, conversations[i]);
      const bool failed = made.starts_with("UserError: ");
      std::string expected;
      hashes >> expected;
      const bool same = (failed ? "-" : hex(hash_of(made))) == expected;
      if (!failed) ++texts;
      if (!same && wrong++ == 0) ADD_FAILURE() << name << ", conversation " << i << ": " << made;
    }
    ++all;
    if (wrong == 0) ++equal;
  }
  std::cout << equal << " of " << all << " templates are equal on " << conversations.size() << " conversations, "
            << texts << " texts\n";
}

TEST(Jinja, BytesRememberWhereTheyCameFrom) {
  const JinjaTemplate::Variables variables = {
      {"a", jinja::make_string(jinja::Text("  Abc déf ", 1))},
      {"b", jinja::make_string(jinja::Text("xyz", 2))},
      {"call", jinja::marked(jinja::value_of_json(R"({"n": 15, "s": "t\"u"})"), 3)},
  };
  const auto runs = [&](const std::string& text) { return shown(marked(text, variables)); };
  EXPECT_EQ(runs("<{{ a }}>{{ b }}"), "0:< 1:  Abc déf  0:> 2:xyz");
  EXPECT_EQ(runs("{{ '<' + a.strip() + '|' + b + '>' }}"), "0:< 1:Abc déf 0:| 2:xyz 0:>");
  EXPECT_EQ(runs("{% set x = a ~ b %}{{ x[3:] }}{{ x[-2] }}{{ x[::-1][:4] }}"), "1:bc déf  2:xyzyzyx 1: ");
  EXPECT_EQ(runs("{{ (a + b).split('c')[1].upper() }}"), "1: DÉF  2:XYZ");
  EXPECT_EQ(runs("{{ a.replace('b', b) | trim }}"), "1:A 2:xyz 1:c déf");
  EXPECT_EQ(runs("{{ [a | trim, b] | join(', ') }}"), "1:Abc déf 0:,  2:xyz");
  EXPECT_EQ(runs("{{ call | tojson }}"), R"(3:{"n": 15, "s": "t\"u"})");
  EXPECT_EQ(runs("{{ call.n }}{{ call.n + 1 }}{{ call.n | string }}"), "3:15 0:16 3:15");
  EXPECT_EQ(runs("{% for k, v in call.items() %}<{{ k }}={{ v }}>{% endfor %}"),
            "0:< 3:n 0:= 3:15 0:>< 3:s 0:= 3:t\"u 0:>");
  EXPECT_EQ(runs("{% macro f(x) %}[{{ x }}]{% endmacro %}{% set y %}{{ f(b) }}{% endset %}{{ y | upper }}"),
            "0:[ 2:XYZ 0:]");
  EXPECT_EQ(runs("{{ b ~ b[:0] ~ b }}{% filter replace('y', '') %}{{ b }}{% endfilter %}"), "2:xyzxyzxz");
  EXPECT_EQ(runs("h{% generation %}{{ b }}!{% endgeneration %}{{ b }}"), "0:h 2g:xyz 0g:! 2:xyz");
  EXPECT_EQ(runs("{% macro f() %}{% generation %}{{ b }}{% endgeneration %}{% endmacro %}{{ f() | upper }}"), "2g:XYZ");
  EXPECT_EQ(runs("{{ '%s-%s' % (b, 1) }}{{ '{}'.format(b) }}{{ b | list }}"),
            "2:xyz 0:-1 2:xyz 0:[ 2:'x' 0:,  2:'y' 0:,  2:'z' 0:]");
}

TEST(Jinja, SaysWhereATemplateFails) {
  const auto fails = [](const std::string& text, std::string_view part) {
    return fails_with<UserError>([&] { marked(text, {}); }, part);
  };
  EXPECT_TRUE(fails("a\n\n{{ x.y }}", "the template, line 3: found 'x', which is undefined"));
  EXPECT_TRUE(fails("{% set d = {} %}\n{{ d.k.l }}", "line 2: found attribute 'k', which is undefined"));
  EXPECT_TRUE(fails("{% if x %}\n{% endfor %}", "line 2: found the tag 'endfor', expected one"));
  EXPECT_TRUE(fails("{{ 1\n", "line 1: found the end of the template within a tag, expected '}}'"));
  EXPECT_TRUE(fails("{{ 1 2 }}", "line 1: found '2', expected '}}'"));
  EXPECT_TRUE(fails("\n{{ raise_exception('no tools') }}", "line 2: it refuses the conversation: no tools"));
  EXPECT_TRUE(fails("{{ 1 | nothing }}", "found the filter 'nothing', which is not known"));
  EXPECT_TRUE(fails("{% include 'x' %}", "found the tag 'include'"));
  EXPECT_TRUE(fails("{{ 9223372036854775807 + 1 }}", "which 64 bits do not hold"));
}

TEST(Jinja, HostileTemplatesEndWithinTheirLimits) {
  const auto ends = [](const std::string& text, std::string_view part) {
    const JinjaLimits limits{.steps = 3'000'000, .memory = uint64_t{16} << 20};
    return fails_with<UserError>([&] { JinjaTemplate::parse(text, "the template").render({}, limits); }, part);
  };
  const std::string loop = "{% for a in range(99999) %}{% for b in range(99999) %}";
  EXPECT_TRUE(ends(loop + "{% endfor %}{% endfor %}", "too many steps"));
  EXPECT_TRUE(ends(loop + "0123456789abcdef{% endfor %}{% endfor %}", "too many"));
  EXPECT_TRUE(ends("{{ 'a' * 1000000000000 }}", "too many bytes"));
  EXPECT_TRUE(ends("{{ ('a' * 1000 * 1000).replace('a', 'b' * 1000 * 1000) }}", "too many bytes"));
  EXPECT_TRUE(ends("{{ 'x'.center(4000000000) }}", "too many bytes"));
  EXPECT_TRUE(ends("{{ [0] * 100000000 }}", "too many bytes"));
  EXPECT_TRUE(ends("{% set ns = namespace(x='a') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                   "too many bytes"));
  EXPECT_TRUE(ends("{% set ns = namespace(x=[]) %}{% for i in range(9000) %}{% set ns.x = [ns.x] %}{% endfor %}",
                   "deep within each other"));
  EXPECT_TRUE(
      ends("{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           "too many"));
  EXPECT_TRUE(ends("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"));
  EXPECT_TRUE(ends("{{ '%1000000d' % 1 }}", "width"));
  EXPECT_TRUE(ends("{{ " + std::string(1000, '(') + "1" + std::string(1000, ')') + " }}", "within each other"));
  EXPECT_TRUE(ends("{{ 1" + std::string(100'000, '+') + "1 }}", "within each other"));
  std::string sum = "{{ 1", nots = "{{ ", ifs;
  for (int i = 0; i < 50'000; ++i) {
    sum += " + 1";
    nots += "not ";
    ifs += "{% if 1 %}";
  }
  EXPECT_TRUE(ends(sum + " }}", "levels"));
  EXPECT_TRUE(ends(nots + "1 }}", "within each other"));
  EXPECT_TRUE(ends(ifs, "within each other"));
  // A namespace may hold itself.
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x[0].x | length }}", OrderedJson::object()),
            "1");
}

// What takes time in proportion to texts and lists.
constexpr const char* kSlow[] = {"{% if n.a == n.b %}{% endif %}",
                                 "{% if n.a != n.b %}{% endif %}",
                                 "{% if n.a < n.b %}{% endif %}",
                                 "{% if n.c in n.a %}{% endif %}",
                                 "{% if 'b' in n.a %}{% endif %}",
                                 "{% if n.a.startswith(n.b) %}{% endif %}",
                                 "{% if n.a.endswith(('b', n.b)) %}{% endif %}",
                                 "{% if n.a.find(n.c) %}{% endif %}",
                                 "{% if n.a.rfind('b' ~ n.c) %}{% endif %}",
                                 "{% if n.a.count('b') %}{% endif %}",
                                 "{% if n.a.count(n.c) %}{% endif %}",
                                 "{% if n.a.find('aaaaaaaaaaaaaaab') %}{% endif %}",
                                 "{% if n.a.rfind('baaaaaaaaaaaaaaa') %}{% endif %}",
                                 "{% if n.a.upper() %}{% endif %}",
                                 "{% if n.a | lower %}{% endif %}",
                                 "{% if n.a is lower %}{% endif %}",
                                 "{% if n.a.islower() %}{% endif %}",
                                 "{% if n.a.isalpha() %}{% endif %}",
                                 "{% if n.a.title() | title %}{% endif %}",
                                 "{% if n.a.strip('bcda') %}{% endif %}",
                                 "{% if n.a | trim(n.c ~ 'ä') %}{% endif %}",
                                 "{% if n.w.lstrip(n.c) %}{% endif %}",
                                 "{% if n.a.split(n.c) %}{% endif %}",
                                 "{% if n.a.rsplit(n.c) %}{% endif %}",
                                 "{% if n.w.split() %}{% endif %}",
                                 "{% if n.w.split('b') %}{% endif %}",
                                 "{% if n.a.partition(n.c) %}{% endif %}",
                                 "{% if n.a.replace('b', '') %}{% endif %}",
                                 "{% if n.a.replace(n.c, '') %}{% endif %}",
                                 "{% if n.a.replace('a', '') %}{% endif %}",
                                 "{% if n.a.splitlines() %}{% endif %}",
                                 "{% if n.a | indent %}{% endif %}",
                                 "{% if n.a | length %}{% endif %}",
                                 "{% if n.a | wordcount %}{% endif %}",
                                 "{% if n.a | e %}{% endif %}",
                                 "{% if n.a | int %}{% endif %}",
                                 "{% if n.u | int %}{% endif %}",
                                 "{% if n.u | float %}{% endif %}",
                                 "{% if n.a | tojson %}{% endif %}",
                                 "{% if 1 | tojson(indent=n.a) %}{% endif %}",
                                 "{% if [n.a] | string %}{% endif %}",
                                 "{% if '%.0s' % n.a %}{% endif %}",
                                 "{% if n.a % () %}{% endif %}",
                                 "{% if n.a.format() %}{% endif %}",
                                 "{% if '%.1000f' % 0.1 %}{% endif %}",
                                 "{% if n.a[400000:] %}{% endif %}",
                                 "{% if n.a[::3] %}{% endif %}",
                                 "{% if n.a[-1000000] %}{% endif %}",
                                 "{% if n.a ~ n.b %}{% endif %}",
                                 "{% if n.a | center(3) %}{% endif %}",
                                 "{% if 'a' | center(1000000) %}{% endif %}",
                                 "{% if n.a.zfill(3) %}{% endif %}",
                                 "{% if n.a | first %}{% endif %}",
                                 "{% if n.a | join %}{% endif %}",
                                 "{% if [n.a, n.b] | sort %}{% endif %}",
                                 "{% if [n.a, n.b] | unique | list %}{% endif %}",
                                 "{% if [n.a, n.b] | max %}{% endif %}",
                                 "{% if [n.a] == [n.b] %}{% endif %}",
                                 "{% if n.a in [n.b] %}{% endif %}",
                                 "{% if {n.a: 1}[n.b] %}{% endif %}",
                                 "{% if n.m.get(n.a) %}{% endif %}",
                                 "{% if big[n.a] %}{% endif %}",
                                 "{% if {n.a: 1} == {n.b: 1} %}{% endif %}",
                                 "{% if n.t in big %}{% endif %}",
                                 "{% if n.t in numbers %}{% endif %}",
                                 "{% if numbers[-1] %}{% endif %}",
                                 "{% if 1.5 in numbers %}{% endif %}",
                                 "{% if space.nothing %}{% endif %}",
                                 "{% if n.l[n.a] %}{% endif %}",
                                 "{% if n.l | sum %}{% endif %}",
                                 "{% if n.l | sort | list %}{% endif %}",
                                 "{% if n.l + n.l %}{% endif %}",
                                 "{% if n.l[::2] %}{% endif %}",
                                 "{% if n.l | list %}{% endif %}",
                                 "{% if dict(big, {}) %}{% endif %}",
                                 "{% if strftime_now('%c%c%c%c%c%c%c%c%c%c') %}{% endif %}",
                                 "{% set n.d = n %}{% if [n] | map(attribute='d.' * 9000 ~ 'd') | list %}{% endif %}",
                                 "{% generation %}{% generation %}{{ n.c }}{% endgeneration %}{% endgeneration %}"};

// Whatever a template does to texts of a megabyte and to long lists, again and again, ends soon: what takes time in
// proportion to bytes takes steps in proportion.
TEST(Jinja, AStepIsABoundedAmountOfWork) {
  const std::string texts =
      "{% set n = namespace(a='a'*1000*1000, b='a'*1000*1000, c='a'*1000*500 ~ 'b', u='_1'*1000*500, w=' a'*1000*500, "
      "d={}, t=(1,), "
      "l=range(9000)|list, m={'a': 1}) %}{% for i in range(9) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
      "{% set big = dict(n.l | map('string') | batch(2)) %}"
      "{% set numbers = dict(n.l[:900] | batch(2)) %}{% set space = namespace(big) %}";
  JinjaTemplate::parse(texts, "the texts").render({}, {.steps = 500'000, .memory = uint64_t{64} << 20});
  for (const std::string one : kSlow) {
    const JinjaTemplate chat = JinjaTemplate::parse(
        texts + "{% for i in range(99999) %}{% for j in range(99999) %}" + one + "{% endfor %}{% endfor %}",
        "the template");
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(fails_with<JinjaLimitError>(
        [&] { chat.render({}, {.steps = 1'500'000, .memory = uint64_t{256} << 20}); }, "too many"))
        << one;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(seconds, 4) << one;  // some 0.1 on a machine at rest, without sanitizers
  }
}

TEST(Jinja, ReadsAnyBytesAsATemplate) {
  const auto all = OrderedJson::parse(read(fixture("cases.json")));
  const JinjaTemplate::Variables variables = variables_of(all["variables"]);
  for (const OrderedJson& entry : all["cases"]) {
    const auto whole = entry["template"].get<std::string>();
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      std::string damaged = whole.substr(0, bytes) + whole.substr(bytes + 1);
      try {
        JinjaTemplate::parse(damaged, "t").render(variables, {.steps = 100'000, .memory = 1 << 20});
      } catch (const UserError&) {
      }
    }
  }
}

// Returns the time that this thread has had on a core, whatever else runs.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A long conversation takes time in proportion: four times the messages, at most some eight times the time.
TEST(Jinja, LongConversationsTakeLinearTime) {
  const JinjaTemplate chat = JinjaTemplate::parse(
      "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | "
      "trim + "
      "'<|im_end|>\n' }}{% endfor %}",
      "the template");
  const auto seconds_of = [&](size_t count) {
    OrderedJson messages = OrderedJson::array();
    for (size_t i = 0; i < count; ++i)
      messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(250, 'a')}});
    const JinjaTemplate::Variables variables = {{"messages", jinja::marked(jinja::value_of_json(messages.dump()), 1)}};
    double best = 1e9;
    for (int round = 0; round < 3; ++round) {
      const double begin = thread_seconds();
      EXPECT_GT(chat.render(variables, JinjaLimits::for_input(count * 250)).size(), count * 250);
      best = std::min(best, thread_seconds() - begin);
    }
    return best;
  };
  const double one = seconds_of(4000), four = seconds_of(16000);  // of a million bytes and of four
  std::cout << fmt::format("{:.1f} MB/s\n", 16000 * 280 / 1e6 / four);
  EXPECT_LT(four, 12 * one);
}

}  // namespace
}  // namespace snug
