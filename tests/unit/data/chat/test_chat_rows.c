/* Claims: every member of a row and of a message is used, harmless, refused by name, or named as
 * unread; contents in parts are one text, or the template's lists; roles have the names of several
 * tools; answers are found under templates whose beginning of an answer says more than earlier
 * answers have. */
#include "tests/support/chat_show.h"

#define CHAT(more)                                                                                 \
    "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'}]" more "}"
#define ONE(more) "{'messages':[{'role':'user','content':'q'" more "}]}"
/* Writes what contents are made of, as multimodal templates do. */
#define LISTS                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"   \
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% elif p.type == 'quote' %}"        \
    "({{ p.said }}){% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}.{% endfor %}"          \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

START_TEST(members_are_used_harmless_or_unread)
{
    setup();
    check_unread(PLAIN, J(CHAT("")), "");
    check_unread(PLAIN, J(CHAT(",'score':1,'note':'x','id':5,'source':'s'")), "score note ");
    check_unread(PLAIN, J(CHAT(",'note':'','other':[],'third':{},'fourth':null")), "");
    check_unread(PLAIN, J(CHAT(",'text':'t','conversations':[{'from':'human','value':'v'}]")),
                 "text conversations ");
    check_unread(PLAIN, J(CHAT(",'tools':[{'a':1}],'documents':[{'b':1}]")), "tools documents ");
    check_unread(PLAIN "{{ tools }}{{ documents }}",
                 J(CHAT(",'tools':[{'a':1}],'documents':[{'b':1}]")), "");
    check_unread(PLAIN "{{ x }}", J(CHAT(",'chat_template_kwargs':{'x':1,'y':2}")),
                 "chat_template_kwargs.y ");
    check_unread(PLAIN, J(ONE(",'name':'n','note':'x','id':1,'refusal':null")),
                 "messages[].name messages[].note ");
    check_unread(PLAIN "{{ messages[0].name }}{{ messages[0]['note'] }}",
                 J(ONE(",'name':'n','note':'x'")), "");
    check_unread(PLAIN,
                 J("{'messages':[{'role':'tool','content':'5','name':'n','tool_call_id':"
                   "'c'}]}"),
                 "");
    check_unread(PLAIN, J(ONE(",'reasoning':'r'")), "messages[].reasoning ");
    check_unread(PLAIN "{{ messages[0].thinking }}", J(ONE(",'reasoning':'r'")), "");
    check_unread(PLAIN, J(ONE(",'tool_calls':[{'name':'f'}]")), "messages[].tool_calls ");
    check_unread(PLAIN, J("{'conversations':[{'from':'human','value':'q','note':1}]}"),
                 "conversations[].note ");
    check_unread(PLAIN, J("{'messages':[{'role':'user','content':'q','from':'x','value':'y'}]}"),
                 "messages[].from messages[].value ");
    check_unread(PLAIN, J("{'instruction':'i','input':'x','context':'c','output':'o','text':'t'}"),
                 "context text ");
    check_unread(PLAIN, J("{'instruction':'i','output':'o','response':'r','history':[]}"),
                 "response ");
    check_unread(PLAIN, J("{'text':'t','tools':[1],'system':'s','prompt':'p'}"),
                 "tools system prompt ");
    check_unread(PLAIN, J("{'prompt':'p','completion':'c','text':'t','system':'s'}"),
                 "text system ");
    check_unread(PLAIN,
                 J("{'prompt':[{'role':'user','content':'p'}],'completion':[{'role':'assistant',"
                   "'content':'c'}],'note':1,'instruction':'i','history':[1],'text':'t'}"),
                 "note instruction history text ");
    check_unread(PLAIN, J("{'instruction':'i','output':'o','prompt':'p','completion':'c'}"),
                 "prompt completion ");
    const char *part = J("{'messages':[{'role':'user','content':[{'type':'text','text':'a',"
                         "'cache_control':{'type':'x'},'note':1,'index':0}]}]}");
    check_unread(PLAIN, part, "messages[].content[].note ");
    check_unread(LISTS, part, "messages[].content[].note ");
    check_unread(LISTS "{{ messages[0].content[0].note }}", part, "");
    check_unread(PLAIN "{{ messages[0].content.note }}", part, "messages[].content[].note ");
    teardown();
}
END_TEST

START_TEST(rows_of_other_kinds_are_refused)
{
    setup();
    check_refused(PLAIN, J("{'prompt':'p','chosen':'a','rejected':'b'}"), CZ_INVALID,
                  "f:1: \"chosen\" is of a pair of answers, as DPO");
    check_refused(PLAIN, J(CHAT(",'rejected_response':'b'")), CZ_INVALID, "\"rejected_response\"");
    check_refused(PLAIN, J("{'prompt':'p','completion':'c','label':false}"), CZ_INVALID,
                  "\"label\" says whether the answer is a good one, as KTO");
    check_refused(PLAIN, J(CHAT(",'kto_tag':true")), CZ_INVALID, "\"kto_tag\" says whether");
    check_unread(PLAIN, J(CHAT(",'label':'good','rejected':null,'chosen':''")), "label ");
    check_refused(PLAIN, J(CHAT(",'functions':[{'name':'f'}]")), CZ_INVALID,
                  "\"functions\" is the older form of tools");
    check_refused(PLAIN, J(ONE(",'function_call':{'name':'f'}")), CZ_INVALID,
                  "message 1: \"function_call\" is the older form of tool_calls");
    check_left_out(PLAIN, J(CHAT(",'images':['a.png']")), CHAT_UNSEEN,
                   "f:1: the row has \"images\", which the model cannot read");
    check_left_out(PLAIN, J(CHAT(",'audio':{'a':1}")), CHAT_UNSEEN, "\"audio\"");
    check_unread(PLAIN, J(CHAT(",'images':[],'video':null")), "");
    check_refused(PLAIN, J(CHAT(",'tools':{'a':1}")), CZ_INVALID,
                  "\"tools\" is an object, not a list");
    check_refused(PLAIN, J(CHAT(",'tools':'{}'")), CZ_INVALID, "\"tools\" is an object");
    check_refused(PLAIN, J(CHAT(",'tools':'nothing'")), CZ_CORRUPT,
                  "f:1: \"tools\" is a text that is no JSON");
    check_refused(PLAIN, J(CHAT(",'documents':5")), CZ_INVALID,
                  "\"documents\" is an integer, not a list");
    check_refused(PLAIN, J(CHAT(",'chat_template_kwargs':[1]")), CZ_INVALID,
                  "\"chat_template_kwargs\" is an array, not an object");
    check_refused(PLAIN, J(CHAT(",'chat_template_kwargs':{'messages':1}")), CZ_INVALID,
                  "\"chat_template_kwargs\" has \"messages\", which the row itself gives");
    check_refused(PLAIN, J(ONE(",'tool_calls':'[]'")), CZ_INVALID,
                  "message 1: \"tool_calls\" is a string, not a list");
    check_refused(PLAIN "{{ messages[0].thinking }}", J(ONE(",'thinking':true")), CZ_INVALID,
                  "message 1: \"thinking\" is true or false, not a text");
    check_refused(PLAIN, J("{'instruction':'i','input':5,'output':'o'}"), CZ_INVALID,
                  "\"input\" is an integer, not a text");
    check_refused(PLAIN, J("{'instruction':'i','output':'o','history':'h'}"), CZ_INVALID,
                  "\"history\" is a string, not a list of pairs");
    check_refused(PLAIN, J("{'instruction':'i','output':'o','history':[{'q':'a','r':'b'}]}"),
                  CZ_INVALID, "\"history\" is no list of pairs");
    check_refused(PLAIN, J(CHAT(",'system':5")), CZ_INVALID, "\"system\" is an integer");
    check_refused(PLAIN, J("{'system':'s','messages':[{'role':'system','content':'t'}]}"),
                  CZ_INVALID, "\"system\" and the first of \"messages\" are two system messages");
    check_refused(PLAIN, J("{'dialog':[{'role':'user','content':'q'}]}"), CZ_INVALID,
                  "\"dialog\" is a list of messages: name it messages");
    check_refused(PLAIN, J("{'a':[],'b':5,'dialog':[{'from':'human','value':'q'}]}"), CZ_INVALID,
                  "\"dialog\" is a list of messages: name it messages");
    check_refused(PLAIN, J("{'a':[{'role':'user'}],'b':[{'value':'q'}],'c':[5],'text':5}"),
                  CZ_INVALID, "there is a, b, c, text (an integer)");
    check_refused(PLAIN, J("{'dialog':{'x':{'role':'user','content':'q'}}}"), CZ_INVALID,
                  "or text; there is dialog");
    check_refused(PLAIN, J("{'instruction':'i','output':5}"), CZ_INVALID,
                  "\"output\" is an integer, not a text");
    check_refused(PLAIN, J("{'instruction':'i'}"), CZ_INVALID,
                  "\"instruction\" and \"output\" have to be texts");
    check_refused(PLAIN, J("{'instruction':'i','output':'o','history':[['a','b','c']]}"),
                  CZ_INVALID, "\"history\" is no list of pairs");
    check_refused(PLAIN, J("{'instruction':'i','output':'o','history':[['a',5]]}"), CZ_INVALID,
                  "\"history\" is no list of pairs");
    check_refused(PLAIN, J("{'messages':[{'role':'user','text':'q'}]}"), CZ_INVALID,
                  "message 1 has no \"content\" but text: rename it");
    teardown();
}
END_TEST

/* 128 variables of a row, and one more. */
START_TEST(variables_of_rows_are_bounded)
{
    char json[8000];
    setup();
    for (int n = CHAT_EXTRA_MAX; n <= CHAT_EXTRA_MAX + 1; n++) {
        int at = snprintf(json, sizeof json,
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                          "\"chat_template_kwargs\":{");
        for (int i = 1; i <= n; i++)
            at += snprintf(json + at, sizeof json - (size_t)at, "%s\"v%d\":%d", i > 1 ? "," : "", i,
                           i);
        snprintf(json + at, sizeof json - (size_t)at, "}}");
        if (n == CHAT_EXTRA_MAX)
            check_shown("{{ v1 }}{{ v128 }}", "all", json, "[1128]");
        else
            check_refused("{{ v1 }}", json, CZ_INVALID,
                          "\"chat_template_kwargs\" has 129 members, more than 128");
    }
    teardown();
}
END_TEST

START_TEST(contents_in_parts_are_texts)
{
    setup();
    const char *parts = J("{'messages':[{'role':'user','content':[{'type':'text','text':'a'},"
                          "{'type':'input_text','text':'b'}]},{'role':'assistant','content':"
                          "[{'text':'c'}]},{'role':'user','content':['d','e']},{'role':"
                          "'assistant','content':[]}]}");
    check_shown(PLAIN, NULL, parts, "<user>a\nb.<assistant>[c.]<user>d\ne.<assistant>[.]");
    check_shown(LISTS, NULL, parts, "<user>ab.<assistant>[c.]<user>de.<assistant>[.]");
    check_shown("{% for m in messages %}{% if m.content is string %}{{ m.content }};{% endif %}"
                "{% endfor %}",
                "all", parts, "[a\nb;c;d\ne;;]");
    check_shown(LISTS, "all",
                J("{'messages':[{'role':'user','content':[{'type':'quote','said':'s'},'t']}]}"),
                "[<user>(s)t.]");
    /* nothing is lost where a null member makes that the message is written anew */
    check_shown("{% for m in messages %}{% for p in m.content %}{% if p.type == 'quote' %}("
                "{{ p.text }}){% else %}{{ p.text }}{{ p.by }}{% endif %}{% endfor %}{{ m.from }}"
                "{% endfor %}",
                "all",
                J("{'messages':[{'role':'user','from':'x','note':null,'content':[{'type':'quote',"
                  "'text':'s'},{'type':'input_text','text':'t','by':'y','with':null}]}]}"),
                "[(s)tyx]");
    /* a template for lists alone gets lists */
    check_shown("{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}"
                "{% endfor %}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
                NULL, J(CHAT(",'system':'s'")), "<system>s.<user>q.<assistant>[a.]");
    check_shown("{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}.{% endfor %}", "all",
                J("{'messages':[{'role':'user','content':['q','r']},{'role':'tool','content':'t'},"
                  "{'role':'assistant','content':[]}]}"),
                "[<user>q\nr.<tool>t.<assistant>.]");
    /* each part has its type; texts stay texts where the template writes both */
    check_shown("{% for m in messages %}{% for p in m.content %}{{ p.type }}={{ p.text }};"
                "{% endfor %}{% endfor %}",
                "all",
                J("{'messages':[{'role':'user','content':[{'type':'input_text','text':'a'}]},"
                  "{'role':'user','content':[{'type':'text','text':'b'},{'text':'c'},'d']}]}"),
                "[text=a;text=b;text=c;text=d;]");
    check_shown("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}L"
                "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}.{% endfor %}",
                "all",
                J("{'messages':[{'role':'system','content':'s'},{'role':'user','content':'q'},"
                  "{'role':'assistant','content':'a'},{'role':'tool','content':'t'}]}"),
                "[s.q.a.t.]");
    /* a part that is not written as it is */
    check_left_out("{% for m in messages %}{% for p in m.content %}{{ p.text | replace('x', '') }}"
                   "{% endfor %}{% endfor %}",
                   J("{'messages':[{'role':'user','content':[{'type':'text','text':'ab'},"
                     "{'type':'text','text':'axb'}]}]}"),
                   CHAT_REFUSED,
                   "f:1: the template does not write the content of message 1, a list of parts");
    /* answers in lists, under a template that forgets */
    check_shown("{% for m in messages %}<{{ m.role }}>{% if loop.last %}?{% endif %}"
                "{% for p in m.content %}{{ p.text }}{% endfor %}.{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}",
                NULL,
                J("{'messages':[{'role':'assistant','content':[{'type':'text','text':'a'},{'type':"
                  "'text','text':'b'}]},{'role':'assistant','content':[{'type':'text','text':"
                  "'c'}]}]}"),
                "<assistant>[ab.]<assistant>[?c.]");
    /* what tools returned: as JSON where the template writes it so */
    check_shown(PLAIN "{% if messages[-1].role == 'tool' %}{{ messages[-1].content | tojson }}"
                      "{% endif %}",
                "all", J("{'messages':[{'role':'tool','content':{'a':1}}]}"),
                "[<tool>{'a': 1}.{\"a\": 1}]");
    check_left_out(
        PLAIN,
        J("{'messages':[{'role':'user','content':['a',{'type':'image_url',"
          "'image_url':{'url':'u'}}]}]}"),
        CHAT_UNSEEN,
        "f:1: message 1: part 2 of the content is \"image_url\", which the model cannot");
    check_left_out(LISTS, J("{'messages':[{'role':'user','content':[{'type':'image'}]}]}"),
                   CHAT_UNSEEN, "part 1 of the content is \"image\", which the model cannot read");
    check_left_out(PLAIN,
                   J("{'messages':[{'role':'user','content':[{'type':'quote','said':'s'}]}"
                     "]}"),
                   CHAT_UNSEEN, "\"quote\", which the template does not write");
    teardown();
}
END_TEST

START_TEST(contents_of_other_types_are_errors)
{
    static const char *const types[][2] = {{"5", "an integer"},
                                           {"1.5", "a number"},
                                           {"true", "true or false"},
                                           {"{'text':'a'}", "an object"}};
    char json[300], words[200];
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++) {
        snprintf(json, sizeof json,
                 "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':%s}]}",
                 types[i][0]);
        snprintf(words, sizeof words, "f:1: message 2: \"content\" is %s: write a text, or a list",
                 types[i][1]);
        check_refused(PLAIN, J(json), CZ_INVALID, words);
        check_refused(LISTS, J(json), CZ_INVALID, words);
        snprintf(json, sizeof json, "{'conversations':[{'from':'human','value':%s}]}", types[i][0]);
        snprintf(words, sizeof words, "f:1: turn 1: \"value\" is %s", types[i][1]);
        check_refused(PLAIN, J(json), CZ_INVALID, words);
    }
    check_refused(PLAIN, J("{'messages':[{'role':'tool','content':{'a':1}}]}"), CZ_INVALID,
                  "message 1: \"content\" is an object");
    check_refused(PLAIN, J("{'messages':[{'role':'user','content':['a',5]}]}"), CZ_INVALID,
                  "message 1: part 2 of the content is an integer");
    check_refused(PLAIN, J("{'messages':[{'role':'user','content':[{'type':'text'}]}]}"),
                  CZ_INVALID, "message 1: part 1 of the content has no \"text\"");
    check_refused(PLAIN, J("{'messages':[{'role':'user','content':[{'type':5,'text':'a'}]}]}"),
                  CZ_INVALID, "part 1 of the content: \"type\" is an integer");
    check_refused(PLAIN, J("{'messages':[{'role':'user','content':[{'text':'a','weight':0}]}]}"),
                  CZ_INVALID, "message 1: part 1 has \"weight\": czero trains whole turns");
    teardown();
}
END_TEST

START_TEST(turns_have_the_names_of_several_tools)
{
    static const char turns[] = "<user>q.<assistant>[a.]";
    setup();
    check_shown(PLAIN, NULL,
                J("{'messages':[{'from':'human','value':'q'},{'from':'gpt','value':'a'}]}"), turns);
    check_shown(PLAIN, NULL,
                J("{'conversations':[{'role':'user','content':'q'},{'role':'assistant','content':"
                  "'a'}]}"),
                turns);
    check_shown(PLAIN, NULL,
                J("{'conversation':[{'role':'human','value':'q'},{'from':'gpt','content':'a'}]}"),
                turns);
    check_shown(PLAIN, NULL,
                J("{'messages':[{'role':'human','content':'q'},{'role':'gpt','content':'a'}]}"),
                turns);
    check_shown(
        PLAIN "{% if messages[0].role == 'human' %}{% endif %}", NULL,
        J("{'messages':[{'role':'human','content':'q'},{'role':'assistant','content':'a'}]}"),
        "<human>q.<assistant>[a.]");
    check_shown(PLAIN, NULL, J("{'system':'s','messages':[{'role':'user','content':'q'}]}"),
                "<system>s.<user>q.");
    check_shown(PLAIN, NULL,
                J("{'system':'s','messages':[{'role':'system','content':'s'},{'role':'user',"
                  "'content':'q'}]}"),
                "<system>s.<user>q.");
    check_shown(PLAIN, NULL, J("{'instruction':'i','context':'c','response':'o'}"),
                "<user>i\nc.<assistant>[o.]");
    check_shown("{{ messages[0].role }}{{ messages[0].tool_calls | tojson }}", "all",
                "{\"conversations\":[{\"from\":\"function_call\",\"value\":"
                "\"[{\\\"name\\\":\\\"f\\\"},{\\\"name\\\":\\\"g\\\"}]\"}]}",
                "[assistant[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}, "
                "{\"type\": \"function\", \"function\": {\"name\": \"g\"}}]]");
    check_refused(PLAIN, J("{'messages':[{'content':'q'}]}"), CZ_INVALID,
                  "f:1: message 1 has neither \"role\" nor \"from\"");
    check_refused(PLAIN, J("{'messages':[{'role':5,'content':'q'}]}"), CZ_INVALID,
                  "message 1: \"role\" is an integer, not a text");
    check_refused(PLAIN, J("{'messages':[{'from':'human','value':'q'},{'from':'me','value':'a'}]}"),
                  CZ_INVALID, "message 2 is from \"me\"; known are");
    check_refused(PLAIN, J("{'conversations':[{'from':'function_call','value':'f'}]}"), CZ_CORRUPT,
                  "f:1: turn 1 is a function_call that is no JSON");
    check_refused(PLAIN, J("{'conversations':[{'from':'function_call','value':'5'}]}"), CZ_INVALID,
                  "turn 1 is a function_call without a \"name\"");
    check_refused(PLAIN, J("{'conversations':[{'from':'function_call','value':'[]'}]}"), CZ_INVALID,
                  "without a \"name\"");
    check_refused(PLAIN, J("{'conversations':[{'from':'function_call'}]}"), CZ_INVALID,
                  "turn 1 is a function_call without a text \"value\"");
    teardown();
}
END_TEST

/* As Qwen3's thinking models: the beginning of an answer opens <think>, earlier answers have none,
 * and those of the last question keep theirs. */
#define THINKS                                                                                     \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"             \
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>"  \
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}(think){{ m.reasoning_content }}"     \
    "(done){% endif %}{{ m.content }}{% for c in m.tool_calls %}[{{ c.name }}]{% endfor %}."       \
    "{% endfor %}{% if add_generation_prompt %}<assistant>(think){% endif %}"

START_TEST(answers_are_found_where_a_prompt_opens_reasoning)
{
    setup();
    check_shown(THINKS, NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'},"
                  "{'role':'user','content':'r'},{'role':'assistant','content':'b'},{'role':"
                  "'user','content':'s'},{'role':'assistant','content':'c',"
                  "'reasoning_content':'w'}]}"),
                "<user>q.<assistant>[a.]<user>r.<assistant>[b.]<user>s.<assistant>(think)"
                "[w(done)c.]");
    /* an answer after a tool's, both before the last question */
    check_shown(THINKS, NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
                  "'reasoning_content':'v','tool_calls':[{'name':'f'}]},{'role':'tool','content':"
                  "'t'},{'role':'assistant','content':'b','reasoning_content':'w'},{'role':'user',"
                  "'content':'r'},{'role':'assistant','content':'c'}]}"),
                "<user>q.<assistant>[a[f].]<tool>t.<assistant>[b.]<user>r.<assistant>(think)"
                "[(done)c.]");
    /* an excluded answer helps to find the next one */
    check_shown(THINKS, NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
                  "'weight':0},{'role':'tool','content':'t'},{'role':'assistant','content':'b'},"
                  "{'role':'user','content':'r'},{'role':'assistant','content':'c'}]}"),
                "<user>q.<assistant>a.<tool>t.<assistant>[b.]<user>r.<assistant>(think)[(done)c.]");
    /* an answer that begins as the opening does is not cut short */
    check_shown(THINKS, NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':"
                  "'(thin'},{'role':'user','content':'r'},{'role':'assistant','content':'b'}]}"),
                "<user>q.<assistant>[(thin.]<user>r.<assistant>(think)[(done)b.]");
    /* nothing in common: the answer begins with its words */
    check_shown("{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}"
                "{% if add_generation_prompt %}!{% endif %}",
                NULL, J(CHAT("")), "<user>q.<assistant>[a.]");
    /* an empty reasoning in earlier answers, a full one in the beginning of the last */
    check_shown("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>"
                "{{ m.reasoning_content if loop.last }}</think>{% endif %}{{ m.content }}."
                "{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}",
                NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
                  "'reasoning':'r'},{'role':'user','content':'s'},{'role':'assistant','content':"
                  "'b','reasoning':'\\nt'}]}"),
                "<user>q.<assistant><think>[</think>a.]<user>s.<assistant><think>\n[t</think>b.]");
    /* the same where the beginning of an answer says nothing of it */
    check_shown("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>"
                "{{ m.reasoning_content if loop.last }}</think>{% endif %}{{ m.content }}."
                "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
                NULL,
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
                  "'reasoning':'r'},{'role':'user','content':'s'},{'role':'assistant','content':"
                  "'b'}]}"),
                "<user>q.<assistant>[<think></think>a.]<user>s.<assistant>[<think></think>b.]");
    check_left_out("{% for m in messages %}{{ m.content }}{{ messages | length }}{% endfor %}",
                   J("{'prompt':[{'role':'user','content':'q'}],'completion':[{'role':"
                     "'assistant','content':'a'}]}"),
                   CHAT_UNFOUND, "f:1: the template writes the prompt alone differently");
    check_left_out("{{ raise_exception('no') }}", J(CHAT("")), CHAT_REFUSED, "no");
    teardown();
}
END_TEST

START_TEST(empty_answers_are_noted)
{
    static const struct {
        const char *json, *loss;
        bool is_empty;
    } rows[] = {
        {CHAT(""), NULL, false},
        {"{'messages':[{'role':'user','content':''},{'role':'assistant','content':'a'}]}", NULL,
         false},
        {"{'messages':[{'role':'assistant','content':''}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':null}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':' \\n'}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':[{'type':'text','text':''}]}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':'<think>\\n\\n</think>\\n'}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':'<think>a</think>'}]}", NULL, false},
        {"{'messages':[{'role':'assistant','content':'','reasoning':'r'}]}", NULL, false},
        {"{'messages':[{'role':'assistant','content':'','tool_calls':[{'name':'f'}]}]}", NULL,
         false},
        {"{'messages':[{'role':'assistant','content':'','tool_calls':[]}]}", NULL, true},
        {"{'messages':[{'role':'assistant','content':'','weight':0}]}", NULL, false},
        {"{'messages':[{'role':'assistant','content':''},{'role':'assistant','content':'a'}]}",
         "completion", false},
        {"{'messages':[{'role':'assistant','content':''},{'role':'assistant','content':'a'}]}",
         "all", true},
        {"{'prompt':[{'role':'assistant','content':''}],'completion':[{'role':'assistant',"
         "'content':'a'}]}",
         NULL, false},
        {"{'prompt':[{'role':'user','content':'q'}],'completion':[{'role':'assistant','content':"
         "''}]}",
         NULL, true},
        {"{'prompt':'p','completion':''}", NULL, true},
        {"{'prompt':'','completion':'c'}", NULL, false},
        {"{'text':' '}", NULL, true},
        {"{'text':' ','train':0}", NULL, false},
        {"{'instruction':'i','output':''}", NULL, true},
    };
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(rows); i++) {
        struct shown s;
        ck_ok(show(PLAIN, rows[i].loss, J(rows[i].json), &s));
        ck_assert_msg(s.has_empty == rows[i].is_empty, "%s", rows[i].json);
    }
    teardown();
}
END_TEST

TEST_MAIN("data/chat_rows", members_are_used_harmless_or_unread, rows_of_other_kinds_are_refused,
          variables_of_rows_are_bounded, contents_in_parts_are_texts,
          contents_of_other_types_are_errors, turns_have_the_names_of_several_tools,
          answers_are_found_where_a_prompt_opens_reasoning, empty_answers_are_noted)
