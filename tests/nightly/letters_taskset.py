"""A taskset of verifiers, its agent, and the function that `tdock train` calls for each episode."""

import openai
import verifiers.v1 as vf

__all__ = ["Letters", "TwoTurns"]


class Letter(vf.Task[vf.TaskData]):
    @vf.reward
    async def a(self, trace: vf.Trace) -> float:
        text = "".join(str(message.content or "") for message in trace.assistant_messages)
        return text.count("a") / max(len(text), 4)


class Letters(vf.Taskset[Letter]):
    def load(self):
        yield Letter(vf.TaskData(prompt=""))


class TwoTurns(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            messages = [{"role": "user", "content": data.prompt}]
            for _ in range(2):
                said = (await client.chat.completions.create(model=ctx.model, messages=messages)).choices[0].message
                messages += [said.model_dump(exclude_none=True), {"role": "user", "content": ">"}]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def solve(base_url, model, prompt):
    client = vf.EvalClientConfig(base_url=base_url)
    seat = vf.AgentConfig(harness={"id": __name__}, runtime={"type": "subprocess"})
    config = vf.SingleAgentEnvConfig(taskset={"id": __name__}, agent=seat)
    env = vf.SingleAgentEnv(config)
    task = next(iter(env.taskset)).with_data(prompt=prompt)
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model=model, client=client))
    if not episode.ok:
        raise RuntimeError(str(episode.errors or [trace.errors for trace in episode.traces]))
    return {name: one.value for name, one in episode.traces[0].rewards.items()}
