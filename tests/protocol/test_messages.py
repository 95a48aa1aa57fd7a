"""What goes over the wire: golden bytes of every message, so that a change of the protocol is a decision."""

from __future__ import annotations

import typing

import msgspec
import pytest

from protocol import api, codec, engine_stats, messages, operations, spec
from protocol.lora import LoraId, LoraRequest
from protocol.messages import FinishReason
from protocol.sampling import Grammar, GrammarKind, GrammarSource, SamplingParams
from protocol.tensors import FileTensor

STATS = engine_stats.EngineStats(1, 2, 3, 4, 5, 6, 7, 8)
LOGPROBS = messages.TokenLogprobs([7, 8], [-0.5, -1.5], 1)
LOGPROB = messages.Logprob(7, "a", b"a", -0.5, 1)
POSITION = messages.PositionLogprobs(LOGPROB, [LOGPROB])
PARAMS = SamplingParams(
    max_tokens=3, seed=-1, logit_bias={5: 1.5}, allowed_token_ids=[1], bad_words_token_ids=[[1, 2]], stop=["x"],
    logprobs=2, grammar=Grammar("g"),
)  # fmt: skip
REQUEST = messages.EngineCoreRequest(2, 0, "r1", [1, 2], PARAMS, 1.5, 3, [9])
REPLY = messages.UtilityReply(2, 0, 5, 6, operations.EngineState(STATS, ["r1"], "idle", operations.RunState()))
ENGINE_SPEC = spec.EngineSpec(0, 1, "ipc://a", {0: "ipc://b"}, "/m")
OUTPUT_SPEC = spec.OutputSpec(0, 1, "ipc://a", "ipc://b", "/m")
ENGINE_FACTS = spec.EngineFacts(2048, 100, 16, 512, "cpu", "float32", 1, 2)

OPERATIONS = [
    operations.StartProfile(),
    operations.StopProfile(),
    operations.Sleep(2, operations.PauseMode.WAIT),
    operations.WakeUp([operations.SleepTag.WEIGHTS, operations.SleepTag.SCHEDULING]),
    operations.ResetPrefixCache(True),
    operations.Pause(operations.PauseMode.KEEP, False),
    operations.Resume(),
    operations.AbortAll(),
    operations.AddLora(LoraRequest("pirate", LoraId(5), "/a")),
    operations.RemoveLora(LoraId(5)),
    operations.ListLoras(),
    operations.PinLora(LoraId(5)),
]
RUN_STATE = operations.RunState(True, 1, [operations.SleepTag.KV_CACHE])
RESULTS = [
    RUN_STATE,
    operations.ProfileState("/p", 3, True),
    operations.CacheReset(False),
    operations.AllAborted(3, RUN_STATE),
    operations.LoraState([LoraId(5), LoraId(7)], [LoraId(5)]),
]

SHARES = spec.WeightsFacts(
    [
        spec.SharedWeights("/m", 5, laid_out=FileTensor("/c", 0, [5], "uint8")),
        spec.SharedWeights("/d", 7, table=FileTensor("/proc/1/fd/2", 4096, [7], "uint8")),
    ]
)
OF_WEIGHTS = [spec.Start(1, spec.WeightsSpec(4, ENGINE_SPEC)), spec.Weights(SHARES), spec.Weights(None)]
OF_RANKS = [spec.Start(1, spec.RankSpec(4, ENGINE_SPEC, 1))]
OF_API_SERVERS = [spec.Start(1, spec.ApiSpec(1, 4, 2, "ipc://a", "ipc://b", [3], b"{}", b"k"))]
STANDING = api.ActorStanding("engine-0", 3, 17, True, "step", 0.5, 0.25, 1.0, 2, "gone", True, 0)
OF_GRAMMARS = [
    spec.Start(1, spec.GrammarSpec(3, "/m")),
    spec.CheckGrammar(GrammarSource(GrammarKind.REGEX, "a+")),
]

MESSAGES = {
    "ENGINE_INPUT": [
        REQUEST,
        messages.AbortRequest(2, 0, ["r1"]),
        messages.UtilityRequest(2, 0, 6, operations.GetState()),
        messages.ResyncRequest(2, 0, {"r1": 4}),
        *(messages.UtilityRequest(2, 0, 6, operation) for operation in OPERATIONS),
    ],
    "ENGINE_OUTPUT": [
        messages.Welcome(2, 0, 1),
        messages.EngineCoreOutputs(
            2,
            0,
            3,
            [messages.EngineCoreOutput("r1", 4, [7], [LOGPROBS], [None, LOGPROBS], FinishReason.STOP, 7)],
            STATS,
        ),
        messages.EngineHeartbeat(2, 0, 4, STATS),
        REPLY,
        *(messages.UtilityReply(2, 0, 5, 6, result) for result in RESULTS),
        messages.UtilityReply(2, 0, 5, 6, None, "no", True),
    ],
    "OUTPUT_INPUT": [REQUEST, messages.AbortRequest(2, 0, ["r1"]), messages.AttachEngine(0, 2, "ipc://a", "ipc://b")],
    "APP_INPUT": [
        messages.RequestOutputs(
            0,
            2,
            [messages.RequestOutput("r1", 4, [7], "a", [POSITION], [None, POSITION], FinishReason.STOP, "x")],
            STATS,
        ),
        messages.EngineAttached(0, 2),
        messages.UtilityAnswer(0, REPLY),
    ],
    "FROM_CHILD": [
        spec.Ready(ENGINE_FACTS),
        spec.Ready(spec.OutputFacts(512)),
        spec.Heartbeat(3, "step", 0.5, 1.0),
        spec.Fault("no"),
        spec.GrammarChecked(Grammar("g")),
        spec.GrammarChecked(None, "no"),
        spec.Ready(spec.GrammarFacts()),
        spec.Ready(SHARES),
        spec.Fault("no", 1),
        spec.Ready(spec.RankFacts()),
        spec.Ready(spec.ApiFacts()),
    ],
    "TO_CHILD": [
        spec.Start(1, ENGINE_SPEC),
        spec.Start(1, OUTPUT_SPEC),
        spec.Stop(),
        *OF_GRAMMARS,
        *OF_WEIGHTS,
        *OF_RANKS,
        *OF_API_SERVERS,
    ],
    "API_INPUT": [
        api.EngineCame(0, 3, "ipc://a", "ipc://b", ENGINE_FACTS),
        api.EngineWent(0, 3, "gone", True),
        api.OutputCame(4, "ipc://a", "ipc://b"),
        api.OutputWent("gone"),
        api.ActorsAre([STANDING]),
        api.HouseOver("no"),
        api.StopServing(15),
        api.GrammarAnswered(6, Grammar("g")),
        api.SharedIs(7, "held 0", b"x"),
        api.ShareKnown(6),
        api.PageAsked(7),
        api.PeerPages(6, [api.PeerPage(b"x", True)]),
    ],
    "HOUSE_INPUT": [
        api.GrammarAsked(6, GrammarSource(GrammarKind.REGEX, "a+")),
        api.GrammarLeft(6),
        api.ServerIs(False, "no", "engine-1", 3, 4, 5, True),
        api.Share(6, "held 0", None),
        api.ShareTaken(7),
        api.PagesAsked(6),
        api.PageTold(7, b"x"),
        api.CannotGoOn("no"),
    ],
}

GOLDEN = {
    "ENGINE_INPUT.0.EngineCoreRequest": (
        "9dab4144445f524551554553540200a27231920102dc001703ffcb3ff0000000000000cb3ff000000000000000cb0000"
        "000000000000cb0000000000000000cb0000000000000000cb3ff00000000000008105cb3ff800000000000091019192"
        "010200909091a178c2c3c302c091a167c0cb3ff8000000000000039109a0c0c0c0"
    ),
    "ENGINE_INPUT.1.AbortRequest": "94ad41424f52545f52455155455354020091a27231",
    "ENGINE_INPUT.2.UtilityRequest": "95a75554494c49545902000691a96765745f7374617465",
    "ENGINE_INPUT.3.ResyncRequest": "94a6524553594e43020081a2723104",
    "ENGINE_INPUT.4.UtilityRequest": "95a75554494c49545902000691ad73746172745f70726f66696c65",
    "ENGINE_INPUT.5.UtilityRequest": "95a75554494c49545902000691ac73746f705f70726f66696c65",
    "ENGINE_INPUT.6.UtilityRequest": "95a75554494c49545902000693a5736c65657002a477616974",
    "ENGINE_INPUT.7.UtilityRequest": (
        "95a75554494c49545902000692a777616b655f757092a777656967687473aa7363686564756c696e67"
    ),
    "ENGINE_INPUT.8.UtilityRequest": "95a75554494c49545902000692b272657365745f7072656669785f6361636865c3",
    "ENGINE_INPUT.9.UtilityRequest": "95a75554494c49545902000693a57061757365a46b656570c2",
    "ENGINE_INPUT.10.UtilityRequest": "95a75554494c49545902000691a6726573756d65",
    "ENGINE_INPUT.11.UtilityRequest": "95a75554494c49545902000691a961626f72745f616c6c",
    "ENGINE_INPUT.12.UtilityRequest": "95a75554494c49545902000692a86164645f6c6f726193a670697261746505a22f61",
    "ENGINE_INPUT.13.UtilityRequest": "95a75554494c49545902000692ab72656d6f76655f6c6f726105",
    "ENGINE_INPUT.14.UtilityRequest": "95a75554494c49545902000691aa6c6973745f6c6f726173",
    "ENGINE_INPUT.15.UtilityRequest": "95a75554494c49545902000692a870696e5f6c6f726105",
    "ENGINE_OUTPUT.0.Welcome": "94a757454c434f4d45020001",
    "ENGINE_OUTPUT.1.EngineCoreOutputs": (
        "97a74f555450555453020003919ca27231049107919392070892cbbfe0000000000000cbbff80000000000000192c093"
        "92070892cbbfe0000000000000cbbff800000000000001a473746f7007c000c0c000dc00100102030405060708000000"
        "0000009090cb0000000000000000"
    ),
    "ENGINE_OUTPUT.2.EngineHeartbeat": "95a9484541525442454154020004dc001001020304050607080000000000009090",
    "ENGINE_OUTPUT.3.UtilityReply": (
        "98ad5554494c4954595f5245504c590200050695ac656e67696e655f7374617465dc0010010203040506070800000000"
        "0000909091a27231a469646c6594a972756e5f7374617465c2c090c0c2"
    ),
    "ENGINE_OUTPUT.4.UtilityReply": (
        "98ad5554494c4954595f5245504c590200050694a972756e5f7374617465c30191a86b765f6361636865c0c2"
    ),
    "ENGINE_OUTPUT.5.UtilityReply": (
        "98ad5554494c4954595f5245504c590200050694ad70726f66696c655f7374617465a22f7003c3c0c2"
    ),
    "ENGINE_OUTPUT.6.UtilityReply": "98ad5554494c4954595f5245504c590200050692ab63616368655f7265736574c2c0c2",
    "ENGINE_OUTPUT.7.UtilityReply": (
        "98ad5554494c4954595f5245504c590200050693ab616c6c5f61626f727465640394a972756e5f7374617465c30191a8"
        "6b765f6361636865c0c2"
    ),
    "ENGINE_OUTPUT.8.UtilityReply": "98ad5554494c4954595f5245504c590200050693aa6c6f72615f73746174659205079105c0c2",
    "ENGINE_OUTPUT.9.UtilityReply": "98ad5554494c4954595f5245504c5902000506c0a26e6fc3",
    "OUTPUT_INPUT.0.EngineCoreRequest": (
        "9dab4144445f524551554553540200a27231920102dc001703ffcb3ff0000000000000cb3ff000000000000000cb0000"
        "000000000000cb0000000000000000cb0000000000000000cb3ff00000000000008105cb3ff800000000000091019192"
        "010200909091a178c2c3c302c091a167c0cb3ff8000000000000039109a0c0c0c0"
    ),
    "OUTPUT_INPUT.1.AbortRequest": "94ad41424f52545f52455155455354020091a27231",
    "OUTPUT_INPUT.2.AttachEngine": "95ad4154544143485f454e47494e450002a76970633a2f2f61a76970633a2f2f62",
    "APP_INPUT.0.RequestOutputs": (
        "95af524551554553545f4f5554505554530002919ca27231049107a16191929507a161c40161cbbfe000000000000001"
        "919507a161c40161cbbfe00000000000000192c0929507a161c40161cbbfe000000000000001919507a161c40161cbbf"
        "e000000000000001a473746f70a178c000c0c0dc001001020304050607080000000000009090"
    ),
    "APP_INPUT.1.EngineAttached": "93af454e47494e455f41545441434845440002",
    "APP_INPUT.2.UtilityAnswer": (
        "93ae5554494c4954595f414e535745520098ad5554494c4954595f5245504c590200050695ac656e67696e655f737461"
        "7465dc00100102030405060708000000000000909091a27231a469646c6594a972756e5f7374617465c2c090c0c2"
    ),
    "FROM_CHILD.0.Ready": (
        "82a474797065a57265616479a566616374738aa474797065ac656e67696e655f6661637473ad6d61785f6d6f64656c5f"
        "6c656ecd0800aa6e756d5f626c6f636b7364aa626c6f636b5f73697a6510aa766f6361625f73697a65cd0200a6646576"
        "696365a3637075a56474797065a7666c6f61743332ad776569676874735f627974657301ae6b765f63616368655f6279"
        "74657302ab68696464656e5f73697a6500"
    ),
    "FROM_CHILD.1.Ready": (
        "82a474797065a57265616479a5666163747382a474797065ac6f75747075745f6661637473aa766f6361625f73697a65cd0200"
    ),
    "FROM_CHILD.2.Heartbeat": (
        "85a474797065a9686561727462656174a47374657003a57068617365a473746570a970686173655f616765cb3fe00000"
        "00000000a870726f6772657373cb3ff0000000000000"
    ),
    "FROM_CHILD.3.Fault": "83a474797065a56661756c74a76d657373616765a26e6fa96c6f73745f72616e6bc0",
    "FROM_CHILD.4.GrammarChecked": (
        "83a474797065af6772616d6d61725f636865636b6564a76772616d6d617291a167a9636f6d706c61696e74c0"
    ),
    "FROM_CHILD.5.GrammarChecked": (
        "83a474797065af6772616d6d61725f636865636b6564a76772616d6d6172c0a9636f6d706c61696e74a26e6f"
    ),
    "FROM_CHILD.6.Ready": "82a474797065a57265616479a5666163747381a474797065ad6772616d6d61725f6661637473",
    "FROM_CHILD.7.Ready": (
        "82a474797065a57265616479a5666163747382a474797065ad776569676874735f6661637473a67368617265739284aa"
        "636865636b706f696e74a22f6da96e756d5f627974657305a86c6169645f6f757485a474797065a466696c65a4706174"
        "68a22f63a66f666673657400a573686170659105a56474797065a575696e7438a57461626c65c084aa636865636b706f"
        "696e74a22f64a96e756d5f627974657307a86c6169645f6f7574c0a57461626c6585a474797065a466696c65a4706174"
        "68ac2f70726f632f312f66642f32a66f6666736574cd1000a573686170659107a56474797065a575696e7438"
    ),
    "FROM_CHILD.8.Fault": "83a474797065a56661756c74a76d657373616765a26e6fa96c6f73745f72616e6b01",
    "FROM_CHILD.9.Ready": "82a474797065a57265616479a5666163747381a474797065aa72616e6b5f6661637473",
    "FROM_CHILD.10.Ready": "82a474797065a57265616479a5666163747381a474797065a96170695f6661637473",
    "TO_CHILD.0.Start": (
        "84a474797065a57374617274a776657273696f6e01a473706563de0025a474797065a6656e67696e65ac656e67696e65"
        "5f696e64657800a565706f636801b072657175657374735f61646472657373a76970633a2f2f61b16f7574707574735f"
        "6164647265737365738100a76970633a2f2f62aa636865636b706f696e74a22f6dab6c6f61645f666f726d6174a46175"
        "746fa6646576696365a46175746fa56474797065a46175746fad6d61785f6d6f64656c5f6c656ec0ac6d61785f6e756d"
        "5f7365717340b66d61785f6e756d5f626174636865645f746f6b656e73cd0200aa626c6f636b5f73697a6510b76e756d"
        "5f6770755f626c6f636b735f6f76657272696465c0b56b765f63616368655f6d656d6f72795f6279746573c0b1736368"
        "6564756c696e675f706f6c696379a466636673a774687265616473c0ac6d61785f6c6f6770726f627314b264756d6d79"
        "5f737465705f7365636f6e6473cb0000000000000000af63616368655f6469726563746f7279c0b5656e61626c655f70"
        "72656669785f63616368696e67c3bc6c6f6e675f70726566696c6c5f746f6b656e5f7468726573686f6c6400ab737065"
        "63756c6174697665c0b06173796e635f7363686564756c696e67c0ac7175616e74697a6174696f6ec0ad656e666f7263"
        "655f6561676572c2af62617463685f696e76617269616e74c2a56375727665c0b270726f66696c65725f646972656374"
        "6f7279c0af776569676874735f7365636f6e6473c0ae6b765f63616368655f6474797065a46175746fa96d61785f6c6f"
        "72617300ad6d61785f6c6f72615f72616e6b10ad6d61785f6370755f6c6f72617300a8706172616c6c656c83a674656e"
        "736f7201a8706970656c696e6501a765787065727473c2ab6e756d5f656e67696e657301aa72656e64657a766f7573a0"
        "a46e616d65c0"
    ),
    "TO_CHILD.1.Start": (
        "84a474797065a57374617274a776657273696f6e01a47370656387a474797065a66f7574707574ac636c69656e745f69"
        "6e64657800a565706f636801ad696e626f785f61646472657373a76970633a2f2f61ab6170705f61646472657373a769"
        "70633a2f2f62aa636865636b706f696e74a22f6da56375727665c0a46e616d65c0"
    ),
    "TO_CHILD.2.Stop": "81a474797065a473746f70",
    "TO_CHILD.3.Start": (
        "84a474797065a57374617274a776657273696f6e01a47370656383a474797065a76772616d6d6172a565706f636803aa"
        "636865636b706f696e74a22f6da46e616d65c0"
    ),
    "TO_CHILD.4.CheckGrammar": "82a474797065ad636865636b5f6772616d6d6172a6736f7572636593a57265676578a2612bc0",
    "TO_CHILD.5.Start": (
        "84a474797065a57374617274a776657273696f6e01a47370656383a474797065a777656967687473a565706f636804a6"
        "656e67696e65de0025a474797065a6656e67696e65ac656e67696e655f696e64657800a565706f636801b07265717565"
        "7374735f61646472657373a76970633a2f2f61b16f7574707574735f6164647265737365738100a76970633a2f2f62aa"
        "636865636b706f696e74a22f6dab6c6f61645f666f726d6174a46175746fa6646576696365a46175746fa56474797065"
        "a46175746fad6d61785f6d6f64656c5f6c656ec0ac6d61785f6e756d5f7365717340b66d61785f6e756d5f6261746368"
        "65645f746f6b656e73cd0200aa626c6f636b5f73697a6510b76e756d5f6770755f626c6f636b735f6f76657272696465"
        "c0b56b765f63616368655f6d656d6f72795f6279746573c0b17363686564756c696e675f706f6c696379a466636673a7"
        "74687265616473c0ac6d61785f6c6f6770726f627314b264756d6d795f737465705f7365636f6e6473cb000000000000"
        "0000af63616368655f6469726563746f7279c0b5656e61626c655f7072656669785f63616368696e67c3bc6c6f6e675f"
        "70726566696c6c5f746f6b656e5f7468726573686f6c6400ab73706563756c6174697665c0b06173796e635f73636865"
        "64756c696e67c0ac7175616e74697a6174696f6ec0ad656e666f7263655f6561676572c2af62617463685f696e766172"
        "69616e74c2a56375727665c0b270726f66696c65725f6469726563746f7279c0af776569676874735f7365636f6e6473"
        "c0ae6b765f63616368655f6474797065a46175746fa96d61785f6c6f72617300ad6d61785f6c6f72615f72616e6b10ad"
        "6d61785f6370755f6c6f72617300a8706172616c6c656c83a674656e736f7201a8706970656c696e6501a76578706572"
        "7473c2ab6e756d5f656e67696e657301aa72656e64657a766f7573a0a46e616d65c0"
    ),
    "TO_CHILD.6.Weights": (
        "82a474797065a777656967687473a5666163747382a474797065ad776569676874735f6661637473a673686172657392"
        "84aa636865636b706f696e74a22f6da96e756d5f627974657305a86c6169645f6f757485a474797065a466696c65a470"
        "617468a22f63a66f666673657400a573686170659105a56474797065a575696e7438a57461626c65c084aa636865636b"
        "706f696e74a22f64a96e756d5f627974657307a86c6169645f6f7574c0a57461626c6585a474797065a466696c65a470"
        "617468ac2f70726f632f312f66642f32a66f6666736574cd1000a573686170659107a56474797065a575696e7438"
    ),
    "TO_CHILD.7.Weights": "82a474797065a777656967687473a56661637473c0",
    "TO_CHILD.8.Start": (
        "84a474797065a57374617274a776657273696f6e01a47370656384a474797065a472616e6ba565706f636804a6656e67"
        "696e65de0025a474797065a6656e67696e65ac656e67696e655f696e64657800a565706f636801b07265717565737473"
        "5f61646472657373a76970633a2f2f61b16f7574707574735f6164647265737365738100a76970633a2f2f62aa636865"
        "636b706f696e74a22f6dab6c6f61645f666f726d6174a46175746fa6646576696365a46175746fa56474797065a46175"
        "746fad6d61785f6d6f64656c5f6c656ec0ac6d61785f6e756d5f7365717340b66d61785f6e756d5f626174636865645f"
        "746f6b656e73cd0200aa626c6f636b5f73697a6510b76e756d5f6770755f626c6f636b735f6f76657272696465c0b56b"
        "765f63616368655f6d656d6f72795f6279746573c0b17363686564756c696e675f706f6c696379a466636673a7746872"
        "65616473c0ac6d61785f6c6f6770726f627314b264756d6d795f737465705f7365636f6e6473cb0000000000000000af"
        "63616368655f6469726563746f7279c0b5656e61626c655f7072656669785f63616368696e67c3bc6c6f6e675f707265"
        "66696c6c5f746f6b656e5f7468726573686f6c6400ab73706563756c6174697665c0b06173796e635f7363686564756c"
        "696e67c0ac7175616e74697a6174696f6ec0ad656e666f7263655f6561676572c2af62617463685f696e76617269616e"
        "74c2a56375727665c0b270726f66696c65725f6469726563746f7279c0af776569676874735f7365636f6e6473c0ae6b"
        "765f63616368655f6474797065a46175746fa96d61785f6c6f72617300ad6d61785f6c6f72615f72616e6b10ad6d6178"
        "5f6370755f6c6f72617300a8706172616c6c656c83a674656e736f7201a8706970656c696e6501a765787065727473c2"
        "ab6e756d5f656e67696e657301aa72656e64657a766f7573a0a472616e6b01a46e616d65c0"
    ),
    "TO_CHILD.9.Start": (
        "84a474797065a57374617274a776657273696f6e01a47370656389a474797065a3617069ac636c69656e745f696e6465"
        "7801a565706f636804ab6e756d5f7365727665727302ad696e626f785f61646472657373a76970633a2f2f61ad686f75"
        "73655f61646472657373a76970633a2f2f62a96c697374656e6572739103a773657276696e67c4027b7da36b6579c401"
        "6ba46e616d65c0"
    ),
    "API_INPUT.0.EngineCame": (
        "96ab454e47494e455f43414d450003a76970633a2f2f61a76970633a2f2f628aa474797065ac656e67696e655f666163"
        "7473ad6d61785f6d6f64656c5f6c656ecd0800aa6e756d5f626c6f636b7364aa626c6f636b5f73697a6510aa766f6361"
        "625f73697a65cd0200a6646576696365a3637075a56474797065a7666c6f61743332ad776569676874735f6279746573"
        "01ae6b765f63616368655f627974657302ab68696464656e5f73697a6500"
    ),
    "API_INPUT.1.EngineWent": "95ab454e47494e455f57454e540003a4676f6e65c3",
    "API_INPUT.2.OutputCame": "94ab4f55545055545f43414d4504a76970633a2f2f61a76970633a2f2f62",
    "API_INPUT.3.OutputWent": "92ab4f55545055545f57454e54a4676f6e65",
    "API_INPUT.4.ActorsAre": (
        "92aa4143544f52535f415245919ca8656e67696e652d300311c3a473746570cb3fe0000000000000cb3fd00000000000"
        "00cb3ff000000000000002a4676f6e65c300"
    ),
    "API_INPUT.5.HouseOver": "92aa484f5553455f4f564552a26e6f",
    "API_INPUT.6.StopServing": "92ac53544f505f53455256494e470f",
    "API_INPUT.7.GrammarAnswered": "96b04752414d4d41525f414e5357455245440691a167c0c0c2",
    "API_INPUT.8.SharedIs": "94a95348415245445f495307a668656c642030c40178",
    "API_INPUT.9.ShareKnown": "92ab53484152455f4b4e4f574e06",
    "API_INPUT.10.PageAsked": "92aa504147455f41534b454407",
    "API_INPUT.11.PeerPages": "93aa504545525f5041474553069192c40178c3",
    "HOUSE_INPUT.0.GrammarAsked": "93ad4752414d4d41525f41534b45440693a57265676578a2612bc0",
    "HOUSE_INPUT.1.GrammarLeft": "92ac4752414d4d41525f4c45465406",
    "HOUSE_INPUT.2.ServerIs": "98a95345525645525f4953c2a26e6fa8656e67696e652d31030405c3",
    "HOUSE_INPUT.3.Share": "94a5534841524506a668656c642030c0",
    "HOUSE_INPUT.4.ShareTaken": "92ab53484152455f54414b454e07",
    "HOUSE_INPUT.5.PagesAsked": "92ab50414745535f41534b454406",
    "HOUSE_INPUT.6.PageTold": "93a9504147455f544f4c4407c40178",
    "HOUSE_INPUT.7.CannotGoOn": "92ac43414e4e4f545f474f5f4f4ea26e6f",
}

CASES = [(name, message) for name, union in MESSAGES.items() for message in union]


@pytest.mark.parametrize(("name", "message"), CASES, ids=lambda value: type(value).__name__)
def test_a_message_survives_the_wire(name, message):
    assert getattr(codec, name).decode(getattr(codec, name).encode(message)) == message


@pytest.mark.parametrize("name", MESSAGES)
def test_every_member_of_a_union_is_tried_here(name):
    unions = {
        "ENGINE_INPUT": messages.EngineInput,
        "ENGINE_OUTPUT": messages.EngineOutput,
        "OUTPUT_INPUT": messages.OutputInput,
        "APP_INPUT": messages.AppInput,
        "FROM_CHILD": spec.FromChild,
        "TO_CHILD": spec.ToChild,
        "API_INPUT": api.ApiInput,
        "HOUSE_INPUT": api.HouseInput,
    }
    assert {type(message) for message in MESSAGES[name]} == set(typing.get_args(unions[name]))


def test_every_operation_and_every_answer_to_one_is_tried_here():
    assert {operations.GetState, *map(type, OPERATIONS)} == set(typing.get_args(operations.UtilityOperation))
    assert {operations.EngineState, *map(type, RESULTS)} == set(typing.get_args(operations.UtilityResult))


@pytest.mark.parametrize(("name", "message"), CASES, ids=lambda value: type(value).__name__)
def test_the_bytes_on_the_wire_are_these(name, message):
    """Fields may only be appended, with a default: else protocol.messages.VERSION is bumped and this is made anew."""
    index = [m for n, m in CASES if n == name].index(message)
    assert getattr(codec, name).encode(message).hex() == GOLDEN[f"{name}.{index}.{type(message).__name__}"]


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x93\xa7UNKNOWN\x01\x02", b"\x92\xadABORT_REQUEST\xa1x", b"\xff" * 99]
)
def test_a_frame_that_is_not_of_the_union_is_a_decode_error(frame):
    with pytest.raises(msgspec.DecodeError):
        codec.ENGINE_INPUT.decode(frame)


def test_the_tags_of_what_a_client_asks_are_the_specified_names():
    assert [kind.value for kind in messages.EngineCoreRequestType] == [
        "ADD_REQUEST",
        "ABORT_REQUEST",
        "UTILITY",
        "RESYNC",
    ]
    for message in MESSAGES["ENGINE_INPUT"]:
        assert msgspec.msgpack.decode(codec.ENGINE_INPUT.encode(message))[0] in list(messages.EngineCoreRequestType)


def test_a_link_with_a_key_hears_nobody_without_it():
    ours, other = (codec.KeyedCodec(codec.HOUSE_INPUT, key) for key in (b"ours", b"othe"))
    message = api.CannotGoOn("no")

    assert ours.decode(ours.encode(message)) == message
    for frame in (other.encode(message), codec.HOUSE_INPUT.encode(message), b"ours", b"our", b""):
        with pytest.raises(msgspec.DecodeError):
            ours.decode(frame)
